//! Check of the licences of everything that goes into the product.

use anyhow::{Context, Result, bail};

use crate::build;

/// Licences that are allowed: a dependency must allow us one of these.
const ALLOWED: [&str; 8] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Targets that the program is built for. The lock file also has what other systems would need, of
/// which nothing is ever compiled.
const TARGETS: [&str; 4] = [
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "aarch64-unknown-linux-musl",
];

/// Checks the licence of every package that is compiled for one of the targets, for the program,
/// its build or its tests, as its manifest states it.
pub(crate) fn check() -> Result<()> {
    let mut arguments = vec!["metadata", "--format-version=1", "--locked"];
    arguments.extend(TARGETS.iter().flat_map(|target| ["--filter-platform", target]));
    let mut metadata = Vec::new();
    build::cargo_into(&arguments, &[], &mut metadata)?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&metadata).context("cargo's metadata cannot be read")?;
    let packages = metadata
        .get("packages")
        .and_then(|packages| packages.as_array())
        .context("cargo's metadata has no packages")?;
    let mut refused = Vec::new();
    for package in packages {
        let text = |field: &str| package.get(field).and_then(|text| text.as_str());
        let licence = text("license").unwrap_or("none stated");
        if !is_allowed(licence) {
            refused.push(format!(
                "{} {}: {licence}",
                text("name").unwrap_or("?"),
                text("version").unwrap_or("?")
            ));
        }
    }
    if packages.is_empty() || !refused.is_empty() {
        bail!("licences that are not allowed here: {}", refused.join("; "));
    }
    Ok(())
}

/// True if an SPDX expression lets us choose from what is allowed. `OR` binds looser than `AND`;
/// the old form of `OR` is a slash.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    alternatives(&expression).iter().any(|alternative| {
        split_outside_parentheses(alternative, " AND ").iter().all(|part| {
            let part = part.trim();
            match part.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
                Some(inner) => is_allowed(inner),
                None => ALLOWED.contains(&part),
            }
        })
    })
}

fn alternatives(expression: &str) -> Vec<&str> {
    split_outside_parentheses(expression, " OR ")
}

fn split_outside_parentheses<'a>(text: &'a str, separator: &str) -> Vec<&'a str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_u32);
    for (index, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let here = text.get(index..).is_some_and(|rest| rest.starts_with(separator));
        if depth == 0 && here && index >= start {
            parts.extend(text.get(start..index));
            start = index + separator.len();
        }
    }
    parts.extend(text.get(start..));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_allowed_if_it_leaves_an_allowed_choice() {
        for allowed in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
            "Unlicense OR MIT",
        ] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for refused in
            ["GPL-3.0", "CC0-1.0", "MIT AND GPL-2.0", "(MIT OR ISC) AND LGPL-3.0", "none stated"]
        {
            assert!(!is_allowed(refused), "{refused}");
        }
    }
}
