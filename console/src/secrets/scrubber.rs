//! The scrubber of lines: finds names of secrets, and leaves out the values behind them.

use std::net::{IpAddr, SocketAddr};

use super::nesting::{Nesting, Quote, QuoteEnd, ends_text, is_end, is_mark};
use super::{LEFT_OUT, is_secret, last_word};

/// Words of HTTP between `Authorization:` and the secret.
const SCHEMES: [&str; 6] = ["bearer", "basic", "digest", "negotiate", "ntlm", "token"];

/// Words after `bearer` in sentences.
const NO_BEARER: [&str; 4] = ["token", "tokens", "auth", "authentication"];

/// Last words of names behind which a word is the value, with nothing but a space between them, if it has letters
/// and digits: `password hunter2`, but not `token expired`.
const SPOKEN: [&str; 6] = ["password", "passwd", "passphrase", "pwd", "token", "secret"];

/// Shortest of these words, in bytes: `10s` is none.
const SHORTEST_SPOKEN: usize = 6;

/// Values that are no secrets.
const NO_SECRETS: [&str; 8] = ["true", "false", "null", "None", "nil", "~", "<nil>", "<none>"];

/// Signs between a name and its value, the longer ones first.
const SEPARATORS: [&str; 10] = [":=", "+=", "=>", "==", "=", ":", "%3D", "%3d", "%3A", "%3a"];

/// Beginning of the tag that ends an element of XML.
const END_TAG: &str = "</";

/// Most lines of a value in quotation marks.
const MOST_LINES: usize = 64;

/// Most lines from a `name` to its `value`, with its own.
const MOST_LINES_OF_PAIR: usize = 3;

/// Longest value that is read for the name behind it.
const LONGEST_IN_PAIR: usize = 512;

/// The scrubber of a text, line by line.
#[derive(Debug)]
pub(super) struct Scrubber {
    scrubbed: String,
    below: Below,
    /// Number of lines in which a `value` is secret, for the `name` before it.
    n_named: usize,
}

/// Effect of the lines so far on the next one.
#[derive(Debug)]
enum Below {
    Nothing,
    /// Lines that begin behind this column go on with a secret, as YAML has it, and items of a list at it.
    Deeper {
        column: usize,
        has_items: bool,
    },
    /// A secret in quotation marks goes on for so many lines at most.
    Quoted(Quote, usize),
    /// An item of a list is the value of a flag.
    Item,
}

/// A line on its way through the scrubber.
#[derive(Debug)]
struct Line<'a> {
    text: &'a str,
    /// Place up to which it was written.
    at: usize,
    /// Brackets and quotation marks that are open there.
    nesting: Nesting,
}

/// A name in a line.
#[derive(Debug, Clone, Copy)]
struct Name<'a> {
    text: &'a str,
    start: usize,
    end: usize,
}

/// Start of a value, and what it goes up to at most.
#[derive(Debug, Clone, Copy)]
struct Value {
    start: usize,
    extent: Extent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// The end of the line.
    Line,
    /// The next flag or `name=`.
    Words,
    /// The next parameter of a URL.
    Parameter,
    /// The next space.
    Word,
    /// The bracket that closes the one at its beginning.
    Bracket,
    /// The end tag of an element of XML.
    Element,
}

impl Scrubber {
    pub(super) fn new(length: usize) -> Self {
        Self { scrubbed: String::with_capacity(length), below: Below::Nothing, n_named: 0 }
    }

    /// Returns the scrubbed text, with a line break at its end if the text has one.
    pub(super) fn finish(mut self, has_break: bool) -> String {
        if has_break && matches!(self.below, Below::Quoted(..)) {
            self.scrubbed.push('\n');
        }
        self.scrubbed
    }

    pub(super) fn add(&mut self, text: &str) {
        let mut line = Line { text, at: 0, nesting: Nesting::default() };
        self.n_named = self.n_named.saturating_sub(1);
        match std::mem::replace(&mut self.below, Below::Nothing) {
            Below::Nothing => {}
            Below::Deeper { column, has_items } => {
                if is_deeper(text, column, has_items) {
                    self.below = Below::Deeper { column, has_items };
                    return;
                }
            }
            Below::Quoted(quote, n_lines) => match quote.end_in(text, &Nesting::default()) {
                QuoteEnd::At(_, end) => line.at = end,
                _ if n_lines > 0 => {
                    self.below = Below::Quoted(quote, n_lines - 1);
                    return;
                }
                _ => {
                    self.scrubbed.push('\n');
                    return;
                }
            },
            Below::Item => {
                let item = text.trim_start();
                let value = item.strip_prefix("- ").unwrap_or(item);
                if value.len() < item.len() || value.starts_with(is_mark) {
                    let start = text.len() - value.len();
                    self.leave_out(&mut line, "", Value { start, extent: Extent::Line });
                }
            }
        }
        self.scrub(&mut line);
    }

    fn scrub(&mut self, line: &mut Line<'_>) {
        while let Some(start) = line.rest().find(is_of_name) {
            let start = line.at + start;
            self.pass(line, start);
            let end = start + line.rest().find(|it| !is_of_name(it)).unwrap_or(line.rest().len());
            let name = line.name(start, end);
            if let Some(value) = self.value(line, name) {
                self.leave_out(line, name.text, value);
            } else {
                self.pass(line, end);
            }
        }
        self.pass(line, line.text.len());
    }

    /// Writes the line up to a place.
    fn pass(&mut self, line: &mut Line<'_>, place: usize) {
        let passed = line.text.get(line.at..place).unwrap_or_default();
        line.nesting.take_all(passed);
        self.scrubbed += passed;
        line.at = line.at.max(place);
    }

    /// Returns the value of a name, if it is secret.
    fn value(&mut self, line: &Line<'_>, name: Name<'_>) -> Option<Value> {
        if let Some(value) = line.separated(name) {
            if ["name", "key"].iter().any(|it| name.text.eq_ignore_ascii_case(it)) {
                let is_secret = line.names_a_secret(value.start);
                self.n_named = if is_secret { MOST_LINES_OF_PAIR } else { 0 };
            } else if name.text.eq_ignore_ascii_case("value")
                && (self.n_named > 0 || line.is_before_name(value.start))
            {
                self.n_named = 0;
                return Some(value);
            }
            return is_secret(name.text).then_some(value);
        }
        if name.text.starts_with('-') && line.ends_after(name.end) && is_secret(name.text) {
            self.below = Below::Item;
            return None;
        }
        line.following(name).filter(|_| is_secret(name.text))
    }

    /// Leaves out a value, up to its end.
    fn leave_out(&mut self, line: &mut Line<'_>, name: &str, value: Value) {
        let Value { start, mut extent } = value;
        self.pass(line, start);
        self.pass(line, start + scheme(name, line.rest()));
        let rest = line.rest();
        let column = key_column(line.text);
        if rest.trim_start().is_empty() {
            if extent == Extent::Line {
                self.below = Below::Deeper { column, has_items: true };
            }
            return;
        }
        if is_harmless(name, rest, extent) {
            return;
        }
        if extent == Extent::Element {
            let length = rest.find(END_TAG).unwrap_or_default();
            self.scrubbed += if length > 0 { LEFT_OUT } else { "" };
            line.at += length;
            return;
        }
        if let Some((quote, length)) = Quote::opening(rest) {
            let closes = line.nesting.closes_quote(quote.mark(), quote.n_backslashes());
            if closes && ends_text(line.text, line.at + length).is_ok() {
                return;
            }
            return self.leave_out_quoted(line, quote, length);
        }
        if rest.starts_with(['[', '{']) {
            extent = Extent::Bracket;
        }
        let (length, is_whole) = line.bare_length(extent);
        let (value, behind) = rest.split_at_checked(length).unwrap_or_default();
        let is_last = behind.trim_start().is_empty();
        if is_last && (!is_whole || value.ends_with('\\') || extent == Extent::Line) {
            self.below = Below::Deeper { column, has_items: false };
        }
        // Lists and maps keep their brackets.
        let inner = value.strip_prefix(['[', '{']).and_then(|it| it.strip_suffix([']', '}']));
        let inner = inner.filter(|_| is_whole);
        let (opening, closing) = match inner {
            Some(_) => (value.get(..1), value.get(length - 1..)),
            None => (None, None),
        };
        self.scrubbed += opening.unwrap_or_default();
        self.scrubbed += if inner.unwrap_or(value).trim().is_empty() { "" } else { LEFT_OUT };
        self.scrubbed += closing.unwrap_or_default();
        line.at += length;
    }

    /// Leaves out a value in quotation marks.
    fn leave_out_quoted(&mut self, line: &mut Line<'_>, quote: Quote, length: usize) {
        let start = line.at + length;
        let content = line.text.get(start..).unwrap_or_default();
        let opening = line.text.get(line.at..start).unwrap_or_default();
        match quote.end_in(content, &line.nesting) {
            QuoteEnd::At(end_of_value, end) => {
                self.scrubbed += opening;
                self.scrubbed += if end_of_value > 0 { LEFT_OUT } else { "" };
                self.scrubbed += content.get(end_of_value..end).unwrap_or_default();
                line.at = start + end;
            }
            // Without its mark, which would open a value once more if this text is scrubbed again.
            QuoteEnd::OfLine => {
                self.scrubbed += LEFT_OUT;
                line.at = start + content.trim_end().len();
            }
            QuoteEnd::Below => {
                self.scrubbed += LEFT_OUT;
                line.at = line.text.len();
                self.below = Below::Quoted(quote, MOST_LINES);
            }
        }
    }
}

impl<'a> Line<'a> {
    fn rest(&self) -> &'a str {
        self.after(self.at)
    }

    fn after(&self, place: usize) -> &'a str {
        self.text.get(place..).unwrap_or_default()
    }

    fn before(&self, place: usize) -> &'a str {
        self.text.get(..place).unwrap_or_default()
    }

    /// Returns the name between two places: without the letters of an escape that it begins with, as in `\ntoken`
    /// and `%26sig`, and with the word before `key`.
    fn name(&self, start: usize, end: usize) -> Name<'a> {
        let before = self.before(start);
        let n_escaped = match before.chars().next_back() {
            Some('\\') => 1,
            Some('%') => 2,
            _ => 0,
        };
        let from = (start + n_escaped).min(end);
        // One that begins with another letter has no such escape.
        let text = self.text.get(from..end).or_else(|| self.text.get(start..end));
        let text = text.unwrap_or_default();
        let two = before.strip_suffix(' ').filter(|_| text.eq_ignore_ascii_case("key"));
        let word = two.map_or(start, |two| two.trim_end_matches(is_of_name).len());
        let text = two.and_then(|_| self.text.get(word..end)).unwrap_or(text);
        Name { text, start, end }
    }

    /// Returns the place behind the index of a name, and the quotation marks and brackets that end there.
    fn after_marks(&self, end: usize) -> usize {
        let after = self.after(end);
        let index =
            after.strip_prefix('[').map(|it| it.trim_start_matches(|it: char| it.is_ascii_digit()));
        let after = index.and_then(|it| it.strip_prefix(']')).unwrap_or(after);
        let is_mark = |it| is_mark(it) || matches!(it, '\\' | ')' | ']' | '}' | '*');
        self.text.len() - after.trim_start_matches(is_mark).len()
    }

    /// Returns the place behind spaces.
    fn after_spaces(&self, place: usize) -> usize {
        self.text.len() - self.after(place).trim_start_matches([' ', '\t']).len()
    }

    /// Returns the value behind a name and a separator.
    fn separated(&self, name: Name<'_>) -> Option<Value> {
        let marked = self.after_marks(name.end);
        let spaced = self.after_spaces(marked);
        let after = self.after(spaced);
        let separator = SEPARATORS.iter().find(|it| after.starts_with(**it))?;
        let place = spaced + separator.len();
        let start = self.after_spaces(place);
        let is_tight = start == place && spaced == marked;
        if *separator == ":" && (after.starts_with("::") || self.is_other(name, start, is_tight)) {
            return None;
        }
        let extent = match *separator {
            "=" if !is_tight => Extent::Line,
            "=" if self.before(name.start).ends_with(['?', '&', '#']) => Extent::Parameter,
            "=" | "%3D" | "%3d" => Extent::Words,
            _ => Extent::Line,
        };
        Some(Value { start, extent })
    }

    /// True if the name before a colon is the end of a path, a Service's name or a module, or the colon is before
    /// a port.
    fn is_other(&self, name: Name<'_>, start: usize, is_tight: bool) -> bool {
        let (before, after) = (self.before(name.start), self.after(start));
        let n_digits = after.len() - after.trim_start_matches(|it: char| it.is_ascii_digit()).len();
        let has_port = (1..=5).contains(&n_digits)
            && name.text.contains(['-', '.'])
            && !after.get(n_digits..).is_some_and(|rest| rest.starts_with(is_of_name));
        let is_in_path =
            before.ends_with('/') && (before.ends_with("://") || !before.ends_with("//"));
        is_in_path || (!is_tight && before.ends_with("::")) || (is_tight && has_port)
    }

    /// Returns the value behind a name without a separator.
    fn following(&self, name: Name<'_>) -> Option<Value> {
        let marked = self.after_marks(name.end);
        let spaced = self.after_spaces(marked);
        let after = self.after(spaced);
        let is_spaced = spaced > marked && !after.is_empty() && !after.starts_with(['\r', '\n']);
        if name.text.starts_with('-') && (is_spaced || after.starts_with(',')) {
            let value = after.trim_start_matches([' ', '\t', ',']);
            let extent = if after.starts_with(',') { Extent::Line } else { Extent::Words };
            return Some(Value { start: self.text.len() - value.len(), extent });
        }
        let is_quoted = after.trim_start_matches('\\').starts_with(is_mark);
        if is_spaced && is_quoted {
            return Some(Value { start: spaced, extent: Extent::Line });
        }
        let is_bearer = name.text.get(name.text.len().saturating_sub(6)..);
        if is_spaced && is_bearer.is_some_and(|it| it.eq_ignore_ascii_case("bearer")) {
            let word = after.split(|it| !is_of_name(it)).next().unwrap_or_default();
            let is_prose = NO_BEARER.iter().any(|it| word.eq_ignore_ascii_case(it));
            return (!is_prose).then_some(Value { start: spaced, extent: Extent::Word });
        }
        let is_spoken = SPOKEN.iter().any(|it| last_word(name.text).eq_ignore_ascii_case(it));
        if is_spaced && is_spoken && marked == name.end && is_spoken_secret(after) {
            return Some(Value { start: spaced, extent: Extent::Word });
        }
        // An element of XML, and the same with a namespace.
        let tag = self.before(name.start).trim_end_matches(|it| is_of_name(it) || it == ':');
        let content = self.after(name.end).strip_prefix('>').filter(|_| tag.ends_with('<'));
        if content.is_some_and(|it| it.contains(END_TAG)) {
            return Some(Value { start: name.end + 1, extent: Extent::Element });
        }
        // A pair, as in a list of headers: ("authorization", "x").
        let opened = self.before(name.start).trim_end_matches(|it| it == '\\' || is_mark(it));
        if opened.len() < name.start && opened.ends_with('(') && after.starts_with(',') {
            return Some(Value { start: self.after_spaces(spaced + 1), extent: Extent::Line });
        }
        let directly = self.after(name.end);
        let is_call = directly.starts_with('(') && !directly.starts_with("()");
        if is_call || directly.starts_with(" {") {
            let start = name.end + usize::from(!is_call);
            return Some(Value { start, extent: Extent::Bracket });
        }
        None
    }

    /// True if nothing but marks stands behind a place.
    fn ends_after(&self, place: usize) -> bool {
        let after = self.after(self.after_marks(place));
        after.trim_start_matches(|it: char| it == ',' || it.is_whitespace()).is_empty()
    }

    /// True if a value is the name of a secret.
    fn names_a_secret(&self, start: usize) -> bool {
        let value = self.after(start).trim_start_matches(|it| it == '\\' || is_mark(it));
        value.split(|it| !is_of_name(it)).next().is_some_and(is_secret)
    }

    /// True if the name of a secret stands behind a value in quotation marks: `"value": "x", "name": "TOKEN"`.
    fn is_before_name(&self, start: usize) -> bool {
        let after = self.after(start);
        let end =
            (0..=LONGEST_IN_PAIR.min(after.len())).rev().find(|it| after.is_char_boundary(*it));
        let after = after.get(..end.unwrap_or_default()).unwrap_or_default();
        let Some((quote, length)) = Quote::opening(after) else { return false };
        let content = after.get(length..).unwrap_or_default();
        let QuoteEnd::At(_, end) = quote.end_in(content, &self.nesting) else { return false };
        let is_between = |it: char| it == ',' || it == '\\' || it.is_whitespace() || is_mark(it);
        let behind = content.get(end..).unwrap_or_default().trim_start_matches(is_between);
        let Some(name) = behind.strip_prefix("name") else { return false };
        let name = name.trim_start_matches(|it| is_between(it) || matches!(it, ':' | '='));
        name.split(|it| !is_of_name(it)).next().is_some_and(is_secret)
    }

    /// Returns the length of a value without quotation marks around it, and false if something in it stays open.
    fn bare_length(&self, extent: Extent) -> (usize, bool) {
        let rest = self.rest();
        let mut own = Nesting::default();
        let (mut previous, mut skipped) = ('=', 0);
        let mut end = rest.len();
        for (place, character) in rest.char_indices() {
            let n_backslashes = own.n_backslashes();
            let behind = rest.get(place..).unwrap_or_default();
            if is_mark(character)
                && place >= skipped
                && self.nesting.closes_quote(character, n_backslashes)
            {
                match ends_text(rest, place + 1) {
                    Ok(()) => {
                        end = place - n_backslashes;
                        break;
                    }
                    Err(place) => skipped = place,
                }
            }
            let is_over = own.is_empty()
                && (self.nesting.closes_bracket(character)
                    || extent.is_over(behind, previous)
                    || (extent == Extent::Bracket && place > 0 && is_end(behind)));
            if is_over {
                end = place;
                break;
            }
            own.take(character);
            previous = character;
        }
        let value = rest.get(..end).unwrap_or_default().trim_end();
        (value.len(), own.is_empty())
    }
}

impl Extent {
    /// True if a value ends between this character and this text.
    fn is_over(self, behind: &str, previous: char) -> bool {
        let is_before_space = behind.starts_with(char::is_whitespace);
        match self {
            Self::Line | Self::Bracket | Self::Element => false,
            Self::Word => is_before_space,
            Self::Parameter => is_before_space || behind.starts_with(['&', '#']),
            Self::Words => previous.is_whitespace() && !is_before_space && begins_argument(behind),
        }
    }
}

fn is_of_name(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '-' | '.')
}

/// True if a text begins with a word of letters and digits that is neither a path nor a URL nor an address.
fn is_spoken_secret(text: &str) -> bool {
    let word = text.split_whitespace().next().unwrap_or_default();
    let word = word.trim_matches(|it: char| ".,;:!?()[]{}".contains(it));
    let has = |is: fn(&char) -> bool| word.chars().any(|it| is(&it));
    let is_url = word.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|it| it.is_ascii_alphabetic())
    });
    word.len() >= SHORTEST_SPOKEN
        && has(char::is_ascii_digit)
        && has(|it| it.is_alphabetic())
        && !word.starts_with('/')
        && !is_url
        && word.parse::<IpAddr>().is_err()
        && word.parse::<SocketAddr>().is_err()
}

/// True for `-v`, `--flag` and `name=`.
fn begins_argument(text: &str) -> bool {
    let name = text.trim_start_matches(is_of_name);
    let is_flag = text
        .strip_prefix('-')
        .is_some_and(|flag| flag.starts_with(|it: char| it == '-' || it.is_ascii_alphabetic()));
    is_flag || (name.len() < text.len() && name.starts_with('='))
}

/// Returns the length of the word before the secret in an `Authorization` header.
fn scheme(name: &str, value: &str) -> usize {
    let behind = value.trim_start_matches(is_of_name);
    let word = value.get(..value.len() - behind.len()).unwrap_or_default();
    let secret = behind.trim_start();
    let is_scheme = SCHEMES.iter().any(|it| word.eq_ignore_ascii_case(it));
    let is_header = name.to_ascii_lowercase().ends_with("authorization");
    let has_secret = secret.len() < behind.len() && !secret.is_empty();
    if is_scheme && is_header && has_secret { value.len() - secret.len() } else { 0 }
}

/// True for a value that is no secret: `None`, or a number of tokens.
fn is_harmless(name: &str, rest: &str, extent: Extent) -> bool {
    let is_behind = |it: char| it.is_whitespace() || is_mark(it) || ",;&#)]}\\".contains(it);
    let word = rest.split(is_behind).next().unwrap_or_default();
    let is_number = word.len() <= 6 && word.bytes().all(|it| it.is_ascii_digit());
    if is_number && !word.is_empty() && name.ends_with(['s', 'S']) {
        return true;
    }
    let behind = rest.get(word.len()..).unwrap_or_default();
    let is_whole = extent != Extent::Line || !behind.starts_with([' ', '\t', ';', '&']);
    NO_SECRETS.contains(&word) && (is_whole || behind.trim_start().is_empty())
}

/// Returns the column of the first key in a line of YAML.
fn key_column(line: &str) -> usize {
    line.len() - line.trim_start_matches([' ', '\t']).trim_start_matches("- ").len()
}

fn is_deeper(line: &str, column: usize, has_items: bool) -> bool {
    let text = line.trim_start_matches([' ', '\t']);
    let indent = line.len() - text.len();
    let is_item = has_items && indent == column && text.starts_with("- ");
    column < indent || is_item || text.trim().is_empty()
}
