//! `top` on a terminal: a table that refreshes, with sorting and a filter.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame};

use super::{Arguments, STANDS_STILL, name, short};
use crate::answers::top::{Sort, Top};
use crate::client::Client;
use crate::outcome::Failure;

/// Time between two questions.
const PAUSE: Duration = Duration::from_secs(2);

/// Longest time for which a key or an answer is waited for at once.
const TICK: Duration = Duration::from_millis(100);

/// Services that are asked for: more than a screen has lines.
const LIMIT: &str = "100";

/// Parameters of the question.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    sort: Sort,
    filter: String,
}

/// State of the screen.
#[derive(Debug)]
struct Screen {
    asked: Asked,
    /// True while a filter is typed.
    is_typing: bool,
    has_endpoints: bool,
    is_held: bool,
    top: Option<Top>,
    failure: Option<String>,
    table: TableState,
}

/// Consequence of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Consequence {
    /// Nothing but another look of the same.
    Nothing,
    /// Another question.
    Ask,
    End,
}

/// Shows the screen until it is left.
pub(super) fn run(client: &Client, arguments: &Arguments) -> io::Result<()> {
    let mut screen = Screen::new(arguments);
    let (questions, asked) = channel();
    let (answers, answered) = channel();
    let client = client.clone();
    // It ends with the channels.
    thread::Builder::new().name("top".to_owned()).spawn(move || ask(&client, &asked, &answers))?;
    // A disconnected asker shows as no more answers.
    let _ = questions.send(screen.asked.clone());
    let mut terminal = ratatui::try_init()?;
    let result = screen.run(&mut terminal, &questions, &answered);
    ratatui::try_restore()?;
    result
}

/// Asks again and again, at once when the question is another one.
fn ask(client: &Client, asked: &Receiver<Asked>, answers: &Sender<Result<Top, Failure>>) {
    let Ok(mut question) = asked.recv() else { return };
    loop {
        let query = [("sort", name(question.sort)), ("filter", &question.filter), ("limit", LIMIT)];
        if answers.send(client.get("/v1/top", &query)).is_err() {
            return;
        }
        match asked.recv_timeout(PAUSE) {
            Ok(next) => question = asked.try_iter().last().unwrap_or(next),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Screen {
    fn new(arguments: &Arguments) -> Self {
        Self {
            asked: Asked { sort: arguments.sort, filter: arguments.filter.clone() },
            is_typing: false,
            has_endpoints: arguments.endpoints,
            is_held: false,
            top: None,
            failure: None,
            table: TableState::default(),
        }
    }

    fn run(
        &mut self,
        terminal: &mut DefaultTerminal,
        questions: &Sender<Asked>,
        answers: &Receiver<Result<Top, Failure>>,
    ) -> io::Result<()> {
        let mut is_changed = true;
        loop {
            if is_changed {
                terminal.draw(|frame| self.draw(frame))?;
            }
            is_changed = false;
            if event::poll(TICK)? {
                is_changed = true;
                if let Event::Key(key) = event::read()? {
                    match self.press(key) {
                        Consequence::Nothing => {}
                        Consequence::Ask => drop(questions.send(self.asked.clone())),
                        Consequence::End => return Ok(()),
                    }
                }
            }
            for answer in answers.try_iter() {
                is_changed |= self.take(answer);
            }
        }
    }

    /// Takes an answer. Returns true if it is shown.
    fn take(&mut self, answer: Result<Top, Failure>) -> bool {
        if self.is_held {
            return false;
        }
        match answer {
            Ok(top) => (self.top, self.failure) = (Some(top), None),
            Err(failure) => self.failure = Some(failure.to_string()),
        }
        true
    }

    fn press(&mut self, key: KeyEvent) -> Consequence {
        if key.kind == KeyEventKind::Release {
            return Consequence::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Consequence::End;
        }
        if self.is_typing { self.type_filter(key.code) } else { self.command(key.code) }
    }

    fn type_filter(&mut self, key: KeyCode) -> Consequence {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.asked.filter.clear();
                return Consequence::Ask;
            }
            KeyCode::Backspace => {
                self.asked.filter.pop();
                return Consequence::Ask;
            }
            KeyCode::Char(character) => {
                self.asked.filter.push(character);
                return Consequence::Ask;
            }
            _ => {}
        }
        Consequence::Nothing
    }

    fn command(&mut self, key: KeyCode) -> Consequence {
        let sort = match key {
            KeyCode::Char('q') | KeyCode::Esc => return Consequence::End,
            KeyCode::Char('c') => Sort::Connections,
            KeyCode::Char('p') => Sort::Packets,
            KeyCode::Char('b') => Sort::Bytes,
            KeyCode::Char('n') => Sort::Name,
            other => {
                match other {
                    KeyCode::Char('/') => self.is_typing = true,
                    KeyCode::Char('e') => self.has_endpoints = !self.has_endpoints,
                    KeyCode::Char(' ') => self.is_held = !self.is_held,
                    KeyCode::Down => self.table.select_next(),
                    KeyCode::Up => self.table.select_previous(),
                    KeyCode::PageDown => self.table.scroll_down_by(20),
                    KeyCode::PageUp => self.table.scroll_up_by(20),
                    KeyCode::Home => self.table.select_first(),
                    KeyCode::End => self.table.select_last(),
                    _ => {}
                }
                return Consequence::Nothing;
            }
        };
        self.asked.sort = sort;
        Consequence::Ask
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let areas =
            Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)]);
        let [head, body, foot] = areas.areas(frame.area());
        frame.render_widget(Paragraph::new(self.head()), head);
        let services = self.top.as_ref().map_or(&[][..], |top| top.services.as_slice());
        let shown = super::table(services, self.has_endpoints);
        let widths = [24, 8, 13, 8, 11, 8, 8, 8];
        let widths = widths.into_iter().enumerate().map(|(column, width)| match column {
            0 => Constraint::Min(width),
            _ => Constraint::Length(width),
        });
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let table = Table::new(shown.rows.into_iter().map(Row::new), widths)
            .header(Row::new(shown.headings).style(bold))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, body, &mut self.table);
        frame.render_widget(Paragraph::new(self.foot()), foot);
    }

    fn head(&self) -> Vec<Line<'static>> {
        let held = if self.is_held { ", held" } else { "" };
        let first = match &self.top {
            None => "reading IPVS counters twice, 2 s apart…".to_owned(),
            Some(top) => format!(
                "{} Services by {}{held}; total {} connections/s, {} bytes/s in, {} out",
                top.total,
                name(self.asked.sort),
                short(top.all.connections),
                short(top.all.bytes_in),
                short(top.all.bytes_out)
            ),
        };
        let stands_still = self.top.as_ref().is_some_and(|top| top.stands_still);
        let second = match (&self.failure, stands_still) {
            (Some(failure), _) => failure.clone(),
            (None, true) => STANDS_STILL.to_owned(),
            (None, false) => String::new(),
        };
        vec![Line::raw(first), Line::raw(second)]
    }

    fn foot(&self) -> String {
        let filter = &self.asked.filter;
        if self.is_typing {
            return format!("filter: {filter}_   (Enter keeps it, Esc clears it)");
        }
        let filter = if filter.is_empty() { String::new() } else { format!(" [{filter}]") };
        format!(
            "c connections  p packets  b bytes  n name  / filter{filter}  e endpoints  space hold  q end"
        )
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::tests::mk_top;
    use super::*;

    fn mk_screen() -> Screen {
        Screen::new(&Arguments {
            once: false,
            sort: Sort::Connections,
            filter: String::new(),
            limit: 20,
            endpoints: false,
        })
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Consequence {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn lines(screen: &mut Screen) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(100, 8)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..100).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..8).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn the_screen_has_services_and_with_a_key_their_endpoints() {
        let mut screen = mk_screen();
        assert!(lines(&mut screen)[0].starts_with("reading IPVS counters"));
        assert!(screen.take(Ok(mk_top())));
        let shown = lines(&mut screen);
        assert!(shown[0].starts_with("9 Services by connections; total 3"), "{shown:?}");
        assert!(shown[2].starts_with("SERVICE"), "{shown:?}");
        assert!(shown[3].starts_with("shop/cart") && shown[3].contains("1.2k"), "{shown:?}");
        assert!(shown[4].starts_with("(no Service)"), "{shown:?}");
        assert_eq!(press(&mut screen, KeyCode::Char('e')), Consequence::Nothing);
        let shown = lines(&mut screen);
        assert!(shown[4].starts_with("  10.244.1.11:8080"), "{shown:?}");
        assert!(shown[7].starts_with("c connections"), "{shown:?}");
    }

    #[test]
    fn keys_sort_filter_and_end() {
        let mut screen = mk_screen();
        assert_eq!(press(&mut screen, KeyCode::Char('b')), Consequence::Ask);
        assert_eq!(screen.asked.sort, Sort::Bytes);
        assert_eq!(press(&mut screen, KeyCode::Char('/')), Consequence::Nothing);
        // Letters are the filter's now.
        for (letter, filter) in [('q', "q"), ('b', "qb")] {
            assert_eq!(press(&mut screen, KeyCode::Char(letter)), Consequence::Ask);
            assert_eq!(screen.asked.filter, filter);
        }
        assert_eq!(press(&mut screen, KeyCode::Backspace), Consequence::Ask);
        assert!(lines(&mut screen)[7].starts_with("filter: q_"));
        assert_eq!(press(&mut screen, KeyCode::Enter), Consequence::Nothing);
        assert!(lines(&mut screen)[7].contains("/ filter [q]"));
        assert_eq!(screen.asked, Asked { sort: Sort::Bytes, filter: "q".to_owned() });
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Consequence::End);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.press(interrupt), Consequence::End);
    }

    #[test]
    fn what_fails_is_said_above_what_was_there() {
        let mut screen = mk_screen();
        screen.take(Ok(mk_top()));
        screen.take(Err(Failure::Unanswered("cannot connect to the console".to_owned())));
        let shown = lines(&mut screen);
        assert_eq!(shown[1], "cannot connect to the console");
        assert!(shown[3].starts_with("shop/cart"), "{shown:?}");
        press(&mut screen, KeyCode::Char(' '));
        assert!(!screen.take(Ok(Top { stands_still: true, ..mk_top() })), "it is held");
        press(&mut screen, KeyCode::Char(' '));
        assert!(screen.take(Ok(Top { stands_still: true, ..mk_top() })));
        assert!(lines(&mut screen)[1].contains("do not advance"));
    }
}
