//! Lines of a terminal as an SVG that moves by its style alone, so that it does so in an `<img>` too.
//!
//! All lines stand below one another in a group, which a window shows a part of. In front of the lines to come is a
//! curtain. At each line the curtain goes down by one, and once the window is full, the group goes up. Where nothing
//! may move, the window shows the end.

use std::fmt::Write as _;
use std::time::Duration;

use super::Line;

/// Size of the terminal, in characters.
const COLUMNS: usize = 122;
const ROWS: usize = 30;
/// Size of a character: that of most monospaced fonts at 13 pixels.
const CHARACTER: f64 = 7.8;
const ROW: usize = 17;
const PADDING: usize = 14;
const TITLE: usize = 30;

/// A longer pause is shortened to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_200);
/// A shorter one is lengthened: a burst of lines could not be followed.
const SHORTEST_PAUSE: Duration = Duration::from_millis(70);
/// The end stays for so long before it begins again.
const END: Duration = Duration::from_secs(8);

const STYLE: &str = "\
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace;\
white-space:pre;fill:#d0d7de}\
.page,.curtain{fill:#0d1117}.bar{fill:#161b22}.title{fill:#8b949e}\
.step{fill:#79c0ff;font-weight:600}.ok{fill:#3fb950}.bad{fill:#ff7b72}.end{fill:#3fb950;font-weight:600}\
.faint{fill:#8b949e}";

/// Draws them, below the command that they are of.
pub(super) fn draw(command: &str, lines: &[Line]) -> String {
    let times = times(lines);
    let count = lines.len() + 1;
    let length = times.last().copied().unwrap_or_default() + END;
    let (width, height) =
        ((COLUMNS as f64 * CHARACTER) as usize + 2 * PADDING, TITLE + ROWS * ROW + PADDING);
    let (window, whole) = (ROWS * ROW, count * ROW);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-label=\"The output of {command}\">\n<style>{STYLE}{}</style>\n\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n\
         <path class=\"bar\" d=\"M0 8a8 8 0 0 1 8-8H{}a8 8 0 0 1 8 8V{TITLE}H0z\"/>\n\
         <text class=\"title\" x=\"{PADDING}\" y=\"20\">{command}</text>\n\
         <svg x=\"{PADDING}\" y=\"{TITLE}\" width=\"{}\" height=\"{window}\">\n<g class=\"lines\">\n",
        animation(&times, length),
        width - 8,
        width - 2 * PADDING
    );
    svg += &text(0, &format!("<tspan class=\"faint\">$ </tspan>{command}"));
    for (number, line) in (1..).zip(lines) {
        svg += &text(number, &coloured(&line.text));
    }
    let _ = writeln!(
        svg,
        "<rect class=\"curtain\" y=\"0\" width=\"{width}\" height=\"{}\"/>",
        whole + window
    );
    svg + "</g>\n</svg>\n</svg>\n"
}

/// The time of each line in the picture.
fn times(lines: &[Line]) -> Vec<Duration> {
    let (mut shown, mut real) = (Duration::ZERO, Duration::ZERO);
    let mut times = Vec::new();
    for line in lines {
        shown += line.after.saturating_sub(real).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        real = line.after;
        times.push(shown);
    }
    times
}

/// The rules by which it moves: one step for each line.
fn animation(times: &[Duration], length: Duration) -> String {
    let (mut up, mut down) = (String::new(), String::new());
    let starts = [Duration::ZERO].into_iter().chain(times.iter().copied());
    for (shown, time) in (1..).zip(starts) {
        let percent = 100.0 * time.as_secs_f64() / length.as_secs_f64();
        if shown == 1 || shown > ROWS {
            let _ = write!(up, "{percent:.2}%{{transform:{}}}", moved_up(shown));
        }
        let _ = write!(down, "{percent:.2}%{{transform:{}}}", moved_down(shown));
    }
    let (all, seconds) = (times.len() + 1, length.as_secs_f64());
    format!(
        ".lines{{transform:{};animation:up {seconds:.2}s step-end infinite}}\
         .curtain{{transform:{};animation:down {seconds:.2}s step-end infinite}}\
         @keyframes up{{{up}}}@keyframes down{{{down}}}\
         @media(prefers-reduced-motion:reduce){{.lines,.curtain{{animation:none}}}}",
        moved_up(all),
        moved_down(all)
    )
}

/// Place of the lines while this many of them are shown.
fn moved_up(shown: usize) -> String {
    format!("translateY(-{}px)", shown.saturating_sub(ROWS) * ROW)
}

/// Place of the curtain meanwhile.
fn moved_down(shown: usize) -> String {
    format!("translateY({}px)", shown * ROW)
}

fn text(number: usize, content: &str) -> String {
    format!("<text y=\"{}\">{content}</text>\n", number * ROW + 13)
}

/// A line in the colours of what the demo says by it.
fn coloured(line: &str) -> String {
    let cut: String = if line.chars().count() > COLUMNS {
        line.chars().take(COLUMNS - 1).chain(['…']).collect()
    } else {
        line.to_owned()
    };
    let cut = cut.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let in_class = |class: &str, text: &str| format!("<tspan class=\"{class}\">{text}</tspan>");
    if cut.starts_with('[') {
        return in_class(if cut.ends_with(" held") { "end" } else { "step" }, &cut);
    }
    for (word, class) in [("ok", "ok"), ("FAILED", "bad")] {
        if let Some(rest) = cut.strip_prefix("    ").and_then(|line| line.strip_prefix(word)) {
            return format!("    {}{rest}", in_class(class, word));
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(milliseconds: u64, text: &str) -> Line {
        Line { after: Duration::from_millis(milliseconds), text: text.to_owned() }
    }

    #[test]
    fn pauses_are_neither_long_nor_unseen() {
        let lines = [line(100, "a"), line(101, "b"), line(9_000, "c")];
        let shown: Vec<u128> = times(&lines).iter().map(Duration::as_millis).collect();
        assert_eq!(shown, [100, 170, 1_370]);
    }

    #[test]
    fn a_full_window_scrolls_and_the_curtain_is_below_the_last_line() {
        assert_eq!([moved_up(1), moved_up(ROWS)], ["translateY(-0px)", "translateY(-0px)"]);
        assert_eq!(moved_up(ROWS + 2), "translateY(-34px)");
        let lines: Vec<Line> = (0..50).map(|number| line(number * 100, "x")).collect();
        let drawn = draw("demo", &lines);
        assert_eq!(drawn.matches("<text ").count(), 52);
        assert!(drawn.contains(&format!(".curtain{{transform:translateY({}px)", 51 * ROW)));
        assert!(drawn.contains(&format!(".lines{{transform:translateY(-{}px)", 21 * ROW)));
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(coloured("a <b> & c"), "a &lt;b&gt; &amp; c");
        assert_eq!(coloured("    ok      it"), "    <tspan class=\"ok\">ok</tspan>      it");
        assert!(coloured("[  8.8 s] 18 of 18 expectations held").contains("class=\"end\""));
        assert_eq!(coloured(&"ä".repeat(COLUMNS + 1)).chars().count(), COLUMNS);
    }
}
