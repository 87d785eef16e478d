//! Quotation marks and brackets that are open in a line.

/// Most of them that are followed. What is deeper counts as text.
const DEEPEST: usize = 32;

/// The quotation marks and brackets that are open, the outermost first.
#[derive(Debug, Default)]
pub(super) struct Nesting {
    open: Vec<Open>,
    /// Number of backslashes right before the next character.
    n_backslashes: usize,
    /// True if the last character before these is of a word: `'` is an apostrophe then.
    is_after_word: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Open {
    /// The bracket that closes it.
    Bracket(char),
    Quote(Quote),
}

/// An opening quotation mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quote {
    mark: char,
    /// Number of backslashes before it, as a text within a text has them.
    n_backslashes: usize,
}

/// End of what stands in quotation marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QuoteEnd {
    /// Start and end of the closing mark. They are the same before a mark of the text around it.
    At(usize, usize),
    /// There are marks in the line behind which it goes on.
    OfLine,
    /// It goes on in the lines below.
    Below,
}

impl Nesting {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn n_backslashes(&self) -> usize {
        self.n_backslashes
    }

    pub(super) fn take_all(&mut self, text: &str) {
        for character in text.chars() {
            self.take(character);
        }
    }

    pub(super) fn take(&mut self, character: char) {
        let n_backslashes = std::mem::take(&mut self.n_backslashes);
        if character == '\\' {
            self.n_backslashes = n_backslashes + 1;
            return;
        }
        let is_of_word = character.is_alphanumeric() && n_backslashes == 0;
        let is_after_word = std::mem::replace(&mut self.is_after_word, is_of_word);
        match character {
            '(' => self.push(Open::Bracket(')')),
            '[' => self.push(Open::Bracket(']')),
            '{' => self.push(Open::Bracket('}')),
            ')' | ']' | '}' => {
                self.open.pop_if(|it| *it == Open::Bracket(character));
            }
            mark if is_mark(mark) => {
                let closed = self.open.iter().rposition(|it| it.is_closed(mark, n_backslashes));
                match closed {
                    Some(place) => self.open.truncate(place),
                    None if is_after_word => {}
                    None => self.push(Open::Quote(Quote { mark, n_backslashes })),
                }
            }
            _ => {}
        }
    }

    fn push(&mut self, open: Open) {
        if self.open.len() < DEEPEST {
            self.open.push(open);
        }
    }

    /// True if a quotation mark closes any of the open ones.
    pub(super) fn closes_quote(&self, mark: char, n_backslashes: usize) -> bool {
        self.open.iter().any(|it| it.is_closed(mark, n_backslashes))
    }

    /// True if a bracket closes the innermost that is open.
    pub(super) fn closes_bracket(&self, character: char) -> bool {
        self.open.last() == Some(&Open::Bracket(character))
    }
}

impl Open {
    fn is_closed(&self, mark: char, n_backslashes: usize) -> bool {
        matches!(self, Self::Quote(quote) if quote.is_closed(mark, n_backslashes))
    }
}

impl Quote {
    /// Returns the quotation mark that a text begins with, and the length of all that belongs to it: `\"`, `b'`.
    pub(super) fn opening(text: &str) -> Option<(Self, usize)> {
        const PREFIXES: [&str; 11] = ["b", "br", "c", "cr", "r", "u", "f", "$", "@", "&", "#"];
        let mut beginning = text.char_indices().take(5);
        let (start, _) = beginning.find(|(_, it)| *it == '\\' || is_mark(*it))?;
        let (prefix, marked) = text.split_at_checked(start)?;
        let prefix = prefix.trim_end_matches('#');
        let n_backslashes = marked.len() - marked.trim_start_matches('\\').len();
        let mark = marked.get(n_backslashes..)?.chars().next().filter(|it| is_mark(*it))?;
        let is_prefix = prefix.is_empty() || PREFIXES.contains(&prefix);
        is_prefix.then_some((Self { mark, n_backslashes }, start + n_backslashes + 1))
    }

    pub(super) fn mark(self) -> char {
        self.mark
    }

    pub(super) fn n_backslashes(self) -> usize {
        self.n_backslashes
    }

    /// True if this mark closes it: one with as many backslashes, or fewer, which closes the text around it.
    /// There may be escaped backslashes before it.
    fn is_closed(self, mark: char, n_backslashes: usize) -> bool {
        let own = self.n_backslashes;
        mark == self.mark && (n_backslashes <= own || n_backslashes % (2 * own + 2) == own)
    }

    /// Returns the end of what stands in these quotation marks in a line.
    pub(super) fn end_in(self, text: &str, around: &Nesting) -> QuoteEnd {
        let (mut n_backslashes, mut skipped) = (0, 0);
        let mut end = QuoteEnd::Below;
        for (place, character) in text.char_indices() {
            if character == '\\' {
                n_backslashes += 1;
                continue;
            }
            let before = std::mem::take(&mut n_backslashes);
            let is_own = self.is_closed(character, before);
            if place < skipped || !(is_own || around.closes_quote(character, before)) {
                continue;
            }
            match ends_text(text, place + 1) {
                Ok(()) if is_own && before >= self.n_backslashes => {
                    return QuoteEnd::At(place - self.n_backslashes, place + 1);
                }
                Ok(()) => return QuoteEnd::At(place - before, place - before),
                Err(place) => (skipped, end) = (place, QuoteEnd::OfLine),
            }
        }
        end
    }
}

pub(super) fn is_mark(character: char) -> bool {
    matches!(character, '"' | '\'' | '`')
}

/// Succeeds if a quotation mark that ends here may be a closing one, as nothing goes on behind it: not the second
/// one in `'it''s'` or `"a"b`. Otherwise returns the end of the marks that follow, for which that holds as well.
pub(super) fn ends_text(text: &str, place: usize) -> Result<(), usize> {
    let behind = text.get(place..).unwrap_or_default();
    let rest = behind.trim_start_matches(|it| it == '\\' || is_mark(it));
    let length = behind.len() - rest.len();
    let is_escape = behind.get(..length).is_some_and(|marks| marks.ends_with('\\'));
    if is_escape || is_end(rest) { Ok(()) } else { Err(place + length) }
}

/// True if a value before this text has ended.
pub(super) fn is_end(rest: &str) -> bool {
    let mut characters = rest.trim_start_matches('#').chars();
    match characters.next() {
        None => true,
        Some('.' | ':' | '&' | '|' | '!' | '?') => {
            characters.next().is_none_or(char::is_whitespace)
        }
        Some(it) if it.is_ascii() => it.is_ascii_whitespace() || ",;)]}<>".contains(it),
        Some(it) => !it.is_alphanumeric(),
    }
}
