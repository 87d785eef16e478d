//! HTML and SVG under construction. Whatever is not of this program's own text is escaped.

use std::fmt::{Display, Write as _};
use std::iter::repeat;

use crate::output::pieces;
use crate::table::{Facts, Table};

/// Elements, of which all that were begun are ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Markup(String);

/// Attribute of an element, with its value.
pub(super) type Attribute<'a> = (&'static str, &'a str);

impl Markup {
    /// An element with this content.
    pub(super) fn element(
        &mut self,
        name: &'static str,
        attributes: &[Attribute<'_>],
        content: impl FnOnce(&mut Self),
    ) -> &mut Self {
        self.begin(name, attributes);
        content(self);
        // Writing to a text cannot fail.
        let _ = write!(self.0, "</{name}>");
        self
    }

    /// An element with a text in it.
    pub(super) fn labelled(
        &mut self,
        name: &'static str,
        attributes: &[Attribute<'_>],
        text: impl Display,
    ) -> &mut Self {
        self.element(name, attributes, |inner| {
            inner.text(text);
        })
    }

    /// An element of HTML that has no content and no end, such as `input`.
    pub(super) fn void(&mut self, name: &'static str, attributes: &[Attribute<'_>]) -> &mut Self {
        self.begin(name, attributes);
        self
    }

    pub(super) fn text(&mut self, text: impl Display) -> &mut Self {
        self.escaped(&text.to_string());
        self
    }

    /// A text with the styles of [`output`](crate::output), each of which is a class.
    pub(super) fn styled(&mut self, text: &str) -> &mut Self {
        for (class, piece) in pieces(text) {
            match class {
                "" => self.text(piece),
                class => self.labelled("span", &[("class", class)], piece),
            };
        }
        self
    }

    /// A paragraph with a text with styles.
    pub(super) fn line(&mut self, text: &str) -> &mut Self {
        self.element("p", &[], |line| {
            line.styled(text);
        })
    }

    /// A table, with links of the cells of some rows below a heading.
    pub(super) fn table(
        &mut self,
        table: &Table,
        link: impl Fn(usize, &str) -> Option<String>,
    ) -> &mut Self {
        if !table.rows.is_empty() {
            self.element("div", &[("class", "wide")], |wide| {
                wide.element("table", &[], |rows| write_rows(rows, table, link));
            });
        }
        for more in &table.more {
            self.line(more);
        }
        self
    }

    /// A list of facts, each with its values.
    pub(super) fn facts(&mut self, facts: &Facts) -> &mut Self {
        self.element("dl", &[], |list| {
            for (name, values) in facts.iter() {
                list.labelled("dt", &[], name);
                for value in values {
                    list.element("dd", &[], |item| {
                        item.styled(value);
                    });
                }
            }
        })
    }

    /// A paragraph, if there is a text.
    pub(super) fn note(&mut self, class: &'static str, text: Option<&str>) -> &mut Self {
        if let Some(text) = text {
            self.labelled("p", &[("class", class)], text);
        }
        self
    }

    /// Returns the whole document.
    pub(super) fn into_document(self) -> String {
        format!("<!doctype html>\n{}\n", self.0)
    }

    fn begin(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.0.push('<');
        self.0.push_str(name);
        for (attribute, value) in attributes {
            self.0.push(' ');
            self.0.push_str(attribute);
            self.0.push_str("=\"");
            self.escaped(value);
            self.0.push('"');
        }
        self.0.push('>');
    }

    fn escaped(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                other => self.0.push(other),
            }
        }
    }
}

fn write_rows(rows: &mut Markup, table: &Table, link: impl Fn(usize, &str) -> Option<String>) {
    rows.element("tr", &[], |row| {
        for heading in &table.headings {
            row.labelled("th", &[("scope", "col")], heading);
        }
    });
    for (number, cells) in table.rows.iter().enumerate() {
        rows.element("tr", &[], |row| {
            for (heading, text) in table.headings.iter().chain(repeat(&"")).zip(cells) {
                row.element("td", &[], |cell| {
                    match link(number, heading) {
                        Some(target) => cell.labelled("a", &[("href", &*target)], text),
                        None => cell.styled(text),
                    };
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::bad;

    #[test]
    fn texts_and_values_cannot_end_an_element() {
        let mut markup = Markup::default();
        let hostile = "</p><script>\"'&";
        markup.labelled("p", &[("title", hostile)], hostile);
        markup.void("input", &[("name", "a")]);
        let escaped = "&lt;/p&gt;&lt;script&gt;&quot;&#39;&amp;";
        assert_eq!(markup.0, format!("<p title=\"{escaped}\">{escaped}</p><input name=\"a\">"));
        let document = markup.into_document();
        assert!(document.starts_with("<!doctype html>\n<p "), "{document}");
    }

    #[test]
    fn elements_are_ended_in_their_order() {
        let mut markup = Markup::default();
        let mut facts = Facts::default();
        facts.add("mode", [format!("ipvs, {}", bad("<held up>"))]);
        facts.add("none", None);
        markup.facts(&facts).note("bad", None).note("bad", Some("no"));
        assert_eq!(
            markup.0,
            "<dl><dt>mode</dt><dd>ipvs, <span class=\"bad\">&lt;held up&gt;</span></dd></dl>\
             <p class=\"bad\">no</p>"
        );
        let mut markup = Markup::default();
        let table = Table {
            headings: vec!["A", "B"],
            rows: vec![vec!["a".to_owned(), "b".to_owned()]],
            more: vec!["and 2 more".to_owned()],
        };
        markup.table(&table, |_, heading| (heading == "B").then(|| "/x".to_owned()));
        assert_eq!(
            markup.0,
            "<div class=\"wide\"><table><tr><th scope=\"col\">A</th><th scope=\"col\">B</th></tr>\
             <tr><td>a</td><td><a href=\"/x\">b</a></td></tr></table></div><p>and 2 more</p>"
        );
    }
}
