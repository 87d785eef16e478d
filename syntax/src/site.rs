//! Addresses of the documents' pages, for messages that refer to one.

/// Returns the address of a page of docs/ on the project's site, by the name of its file without `.md`, and with the
/// anchor of a section if it has one: `page!("modes")`, `page!("modes", "fallback")`.
#[macro_export]
macro_rules! page {
    ($name:literal) => {
        concat!($crate::base!(), $name, ".html")
    };
    ($name:literal, $section:literal) => {
        concat!($crate::base!(), $name, ".html#", $section)
    };
}

/// The folder of these pages. The name is that of the API group (`apiVersion: kube-ipvs.io/v1alpha1`).
#[macro_export]
macro_rules! base {
    () => {
        "https://kube-ipvs.io/docs/"
    };
}

/// Replaces files of docs/ by the addresses of their pages: a terminal has no such folder.
#[must_use]
pub fn with_addresses(text: &str) -> String {
    let mut parts = text.split("docs/");
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(".md") {
            Some((name, rest))
                if name.bytes().all(|b| b.is_ascii_lowercase() || b"-/".contains(&b)) =>
            {
                replaced += &format!("{}{name}.html{rest}", base!());
            }
            _ => replaced += &format!("docs/{part}"),
        }
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::with_addresses;

    #[test]
    fn files_become_pages() {
        assert_eq!(page!("limits"), "https://kube-ipvs.io/docs/limits.html");
        assert_eq!(page!("modes", "fallback"), "https://kube-ipvs.io/docs/modes.html#fallback");
        assert_eq!(
            with_addresses("docs/fast-path.md has the costs; see docs/modes.md."),
            format!("{} has the costs; see {}.", page!("fast-path"), page!("modes"))
        );
        for same in ["no file", "/srv/docs/", "docs/A.md", "docs/picture.png"] {
            assert_eq!(with_addresses(same), same);
        }
    }
}
