//! HTML and SVG under construction. Whatever is not of this program's own text is escaped.

use std::fmt::{Display, Write as _};

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

    /// A row of a table, of headings.
    pub(super) fn headings(&mut self, headings: &[&str]) -> &mut Self {
        self.element("thead", &[], |head| {
            head.element("tr", &[], |row| {
                for heading in headings {
                    row.labelled("th", &[("scope", "col")], heading);
                }
            });
        })
    }

    /// A paragraph, if there is a text.
    pub(super) fn note(&mut self, class: &'static str, text: Option<&str>) -> &mut Self {
        if let Some(text) = text {
            self.labelled("p", &[("class", class)], text);
        }
        self
    }

    /// A term of a list of terms, with its value.
    pub(super) fn term(&mut self, term: &'static str, value: impl Display) -> &mut Self {
        self.labelled("dt", &[], term).labelled("dd", &[], value)
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

#[cfg(test)]
mod tests {
    use super::*;

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
        markup.element("dl", &[], |list| {
            list.term("mode", "ipvs");
        });
        markup.note("bad", None).note("bad", Some("no"));
        assert_eq!(markup.0, "<dl><dt>mode</dt><dd>ipvs</dd></dl><p class=\"bad\">no</p>");
    }
}
