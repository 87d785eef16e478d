//! The picture of the page: what things take over the number of services, both axes logarithmic.
//!
//! One panel for each kernel. Colours are of the things, dashes of the raw cost; light and dark
//! follow the reader's choice.

use std::fmt::Write as _;

use super::results::{Run, grouped};
use super::schema::{Line, Measured};

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 400.0;
/// Place of a panel's axes, from its corner.
const LEFT: f64 = 62.0;
const RIGHT: f64 = WIDTH - 30.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = HEIGHT - 44.0;
/// For the names of the lines, below the panels.
const LEGEND: f64 = 64.0;

/// Curve of a panel: its name, and what it draws.
struct Series {
    name: &'static str,
    class: &'static str,
    /// The line's name, and whether it is the raw one's.
    line: &'static str,
    raw: bool,
    value: fn(&Line) -> Option<f64>,
}

const SERIES: [Series; 7] = [
    Series::new("first sync", "a", "first_sync", false, |line| Some(line.wall_ms)),
    Series::new("its raw cost", "a raw", "first_sync", true, |line| Some(line.wall_ms)),
    Series::new("restart", "b", "restart", false, |line| Some(line.wall_ms)),
    Series::new("listing it", "b raw", "restart", true, |line| Some(line.wall_ms)),
    Series::new("one endpoint: median", "c", "endpoint_moved", false, |line| line.median_ms),
    Series::new("its raw cost", "c raw", "endpoint_moved", true, |line| line.median_ms),
    Series::new("one endpoint: 99th percentile", "d", "endpoint_moved", false, |line| line.p99_ms),
];

const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#24292f}\
.t{font-weight:600;font-size:13px}\
.page{fill:#ffffff}\
.grid{stroke:#d0d7de;stroke-width:1}\
polyline{fill:none;stroke-width:2;stroke-linejoin:round}\
.raw{stroke-dasharray:5 4;stroke-width:1.5}\
.a{stroke:#0969da}.b{stroke:#8250df}.c{stroke:#1a7f37}.d{stroke:#bc4c00}\
circle.a{fill:#0969da}circle.b{fill:#8250df}circle.c{fill:#1a7f37}circle.d{fill:#bc4c00}\
circle{stroke:none!important}\
@media(prefers-color-scheme:dark){\
text{fill:#e6edf3}.page{fill:#0d1117}.grid{stroke:#30363d}\
.a{stroke:#58a6ff}.b{stroke:#bc8cff}.c{stroke:#3fb950}.d{stroke:#f0883e}\
circle.a{fill:#58a6ff}circle.b{fill:#bc8cff}circle.c{fill:#3fb950}circle.d{fill:#f0883e}}";

/// Ranges of a panel: powers of ten on both axes, from the first to the last.
struct Scale {
    services: (f64, f64),
    milliseconds: (f64, f64),
}

// === impl Series ===

impl Series {
    const fn new(
        name: &'static str,
        class: &'static str,
        line: &'static str,
        raw: bool,
        value: fn(&Line) -> Option<f64>,
    ) -> Self {
        Self { name, class, line, raw, value }
    }

    fn points(&self, sizes: &[&Measured]) -> Vec<(f64, f64)> {
        sizes
            .iter()
            .filter_map(|size| {
                let line = if self.raw { size.raw(self.line) } else { size.ours(self.line) };
                Some((f64::from(size.services), (self.value)(line?)?))
            })
            .filter(|(services, value)| *services > 0.0 && *value > 0.0)
            .collect()
    }
}

// === impl Scale ===

impl Scale {
    fn of(points: &[(f64, f64)]) -> Option<Self> {
        let ends = |values: &mut dyn Iterator<Item = f64>| {
            let logarithms: Vec<f64> = values.map(f64::log10).collect();
            let first = logarithms.iter().copied().reduce(f64::min)?.floor();
            let last = logarithms.iter().copied().reduce(f64::max)?.ceil();
            Some((first, last.max(first + 1.0)))
        };
        Some(Self {
            services: ends(&mut points.iter().map(|point| point.0))?,
            milliseconds: ends(&mut points.iter().map(|point| point.1))?,
        })
    }

    fn x(&self, services: f64) -> f64 {
        let (first, last) = self.services;
        LEFT + (services.log10() - first) / (last - first) * (RIGHT - LEFT)
    }

    fn y(&self, milliseconds: f64) -> f64 {
        let (first, last) = self.milliseconds;
        BOTTOM - (milliseconds.log10() - first) / (last - first) * (BOTTOM - TOP)
    }
}

/// The picture of runs at native speed, as SVG; none if they have no sizes to draw a line through.
pub(crate) fn svg(runs: &[&Run]) -> Option<String> {
    let panels: Vec<(&Run, Vec<&Measured>)> =
        runs.iter().map(|run| (*run, run.of_endpoints(10))).filter(|it| it.1.len() > 1).collect();
    let all: Vec<(f64, f64)> = panels
        .iter()
        .flat_map(|(_, sizes)| SERIES.iter().flat_map(|series| series.points(sizes)))
        .collect();
    // All panels have the same scale, or they could not be compared.
    let scale = Scale::of(&all)?;
    let (width, height) = (WIDTH * panels.len() as f64, HEIGHT + LEGEND);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"What the first sync, a \
         restart and one endpoint take, over the number of services\">\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\"/>\n"
    );
    for (place, (run, sizes)) in panels.iter().enumerate() {
        svg += &panel(run, sizes, &scale, WIDTH * place as f64);
    }
    svg += &legend(width);
    svg += "</svg>\n";
    Some(svg)
}

fn panel(run: &Run, sizes: &[&Measured], scale: &Scale, offset: f64) -> String {
    let mut svg = format!("<g transform=\"translate({offset} 0)\">\n");
    svg += &text(LEFT, TOP - 16.0, "start", "t", &format!("Linux {}", run.series));
    for power in powers(scale.milliseconds) {
        let y = scale.y(power);
        let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>");
        svg += &text(LEFT - 6.0, y + 4.0, "end", "", &duration(power));
    }
    for power in powers(scale.services) {
        let x = scale.x(power);
        let _ = writeln!(svg, "<path class=\"grid\" d=\"M{x:.1} {TOP}V{BOTTOM}\"/>");
        svg += &text(x, BOTTOM + 17.0, "middle", "", &grouped(power as u32));
    }
    let middle = f64::midpoint(LEFT, RIGHT);
    svg += &text(middle, BOTTOM + 36.0, "middle", "", "services, of 10 endpoints each");
    for series in &SERIES {
        let points: Vec<(f64, f64)> = series
            .points(sizes)
            .into_iter()
            .map(|(services, value)| (scale.x(services), scale.y(value)))
            .collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ =
            writeln!(svg, "<polyline class=\"{}\" points=\"{}\"/>", series.class, path.join(" "));
        if !series.raw {
            for (x, y) in points {
                let _ = writeln!(
                    svg,
                    "<circle class=\"{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>",
                    series.class
                );
            }
        }
    }
    svg + "</g>\n"
}

fn legend(width: f64) -> String {
    let mut svg = String::new();
    // Two rows, as many columns as half of them need.
    let columns = SERIES.len().div_ceil(2);
    for (place, series) in SERIES.iter().enumerate() {
        let x = 20.0 + (width - 40.0) / columns as f64 * (place / 2) as f64;
        let y = HEIGHT + 18.0 + 22.0 * (place % 2) as f64;
        let _ = writeln!(
            svg,
            "<polyline class=\"{}\" points=\"{x:.1},{:.1} {:.1},{:.1}\"/>",
            series.class,
            y - 4.0,
            x + 26.0,
            y - 4.0
        );
        svg += &text(x + 32.0, y, "start", "", series.name);
    }
    svg
}

fn text(x: f64, y: f64, anchor: &str, class: &str, words: &str) -> String {
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{words}</text>\n"
    )
}

fn powers((first, last): (f64, f64)) -> impl Iterator<Item = f64> {
    (first as i32..=last as i32).map(|power| 10_f64.powi(power))
}

fn duration(milliseconds: f64) -> String {
    if milliseconds >= 1_000.0 {
        format!("{} s", milliseconds / 1_000.0)
    } else if milliseconds >= 1.0 {
        format!("{milliseconds} ms")
    } else {
        format!("{:.0} µs", milliseconds * 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_powers_of_ten_and_have_a_length() {
        let scale = Scale::of(&[(1_000.0, 0.3), (50_000.0, 2_000.0)]).unwrap();
        assert_eq!((scale.services, scale.milliseconds), ((3.0, 5.0), (-1.0, 4.0)));
        assert!((scale.x(1_000.0) - LEFT).abs() < 0.1 && (scale.y(10_000.0) - TOP).abs() < 0.1);
        assert_eq!(Scale::of(&[(10.0, 10.0)]).unwrap().services, (1.0, 2.0));
        assert!(Scale::of(&[]).is_none());
    }

    #[test]
    fn durations_have_their_unit() {
        assert_eq!([0.1, 10.0, 10_000.0].map(duration), ["100 µs", "10 ms", "10 s"]);
    }
}
