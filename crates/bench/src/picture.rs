//! Charts of latency distributions: for each series, the share of calls that took at most a given time.
//!
//! The chart is drawn as SVG. The PNG is rendered from it with an embedded font, so that it
//! looks the same everywhere and nothing needs to be installed.

use crate::error::Error;
use crate::stats::{Samples, percentile};
use crate::table::duration;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// One line of the chart.
#[derive(Debug, Clone)]
pub struct Series {
    name: String,
    group: String,
    dashed: bool,
    sorted_ns: Vec<f64>,
}

impl Series {
    /// Invocations: a solid line. Series of one group have the same colour.
    pub fn invocation(name: &str, group: &str, samples: &Samples) -> Self {
        Series {
            name: name.into(),
            group: group.into(),
            dashed: false,
            sorted_ns: samples.sorted_ns(),
        }
    }

    /// A raw baseline: a dashed line in the colour of its group.
    pub fn baseline(name: &str, group: &str, samples: &Samples) -> Self {
        Series {
            dashed: true,
            ..Self::invocation(name, group, samples)
        }
    }

    fn at(&self, share: f64) -> f64 {
        percentile(&self.sorted_ns, share).max(1.0)
    }

    /// The largest share with at least ten samples above it. Beyond it, a line would show single outliers.
    fn trusted(&self) -> f64 {
        (1.0 - 10.0 / self.sorted_ns.len() as f64).max(0.5)
    }
}

/// A chart of latency distributions.
#[derive(Debug, Clone)]
pub struct Picture {
    /// Title.
    pub title: String,
    /// Subtitle: machine and setting.
    pub subtitle: String,
    /// Lines in the order of the legend. Lines without samples are omitted.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 1280.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 900.0;
const TOP: f64 = 130.0;
const LEGEND_STEP: f64 = 50.0;
/// Lines begin at this share: single fast calls would draw a long foot along the axis.
const SKIPPED: f64 = 0.005;
/// The vertical axis is linear up to this share. Above it, each further nine has the same height.
const LINEAR_TO: f64 = 0.9;
/// The linear part's share of the height.
const LINEAR_HEIGHT: f64 = 0.54;
/// Colours by Okabe and Ito, distinct for any colour vision and on paper.
const COLOURS: [&str; 10] = [
    "#0072B2", "#D55E00", "#009E73", "#A6467F", "#E69F00", "#56B4E9", "#5B4A9E", "#4D4D4D", "#8C564B", "#7A7A00",
];
const INK: &str = "#1f2933";
const FAINT: &str = "#616e7c";
const GRID: &str = "#e4e7eb";

/// Computes the axes for the given series.
struct Axes {
    low: f64,
    high: f64,
    nines: f64,
    bottom: f64,
}

impl Axes {
    fn of(series: &[&Series]) -> Self {
        let trusted = series.iter().map(|s| s.trusted()).fold(0.5, f64::max);
        let nines = (-(1.0 - trusted).log10()).clamp(2.0, 4.0).floor();
        let top = 1.0 - 10f64.powf(-nines);
        let low = series.iter().map(|s| s.at(SKIPPED)).reduce(f64::min).unwrap_or(100.0);
        let high = series.iter().map(|s| s.at(s.trusted().min(top))).fold(1.0, f64::max);
        let rows = series.len() as f64;
        let bottom = (TOP + 480.0).max(TOP + 20.0 + rows * LEGEND_STEP);
        // Avoid an empty axis if all samples are equal.
        Axes {
            low: nice(low / 1.02, false),
            high: nice(high.max(low * 2.0) * 1.02, true),
            nines,
            bottom,
        }
    }

    fn x(&self, ns: f64) -> f64 {
        LEFT + (ns / self.low).ln() / (self.high / self.low).ln() * (RIGHT - LEFT)
    }

    fn height(&self, share: f64) -> f64 {
        if share <= LINEAR_TO {
            return share / LINEAR_TO * LINEAR_HEIGHT;
        }
        let nines = -(1.0 - share).max(1e-12).log10();
        LINEAR_HEIGHT + (nines - 1.0) / (self.nines - 1.0) * (1.0 - LINEAR_HEIGHT)
    }

    fn y(&self, share: f64) -> f64 {
        self.bottom - self.height(share) * (self.bottom - TOP)
    }

    /// Returns the share at a height, to draw lines in equal steps.
    fn share(&self, height: f64) -> f64 {
        if height <= LINEAR_HEIGHT {
            return height / LINEAR_HEIGHT * LINEAR_TO;
        }
        1.0 - 10f64.powf(-(1.0 + (height - LINEAR_HEIGHT) / (1.0 - LINEAR_HEIGHT) * (self.nines - 1.0)))
    }
}

/// Returns the next of 1, 2, 5, 10, ... below or above.
fn nice(x: f64, up: bool) -> f64 {
    let decade = 10f64.powf(x.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|s| s * decade);
    let found = if up {
        steps.iter().find(|s| **s >= x)
    } else {
        steps.iter().rfind(|s| **s <= x)
    };
    found.copied().unwrap_or(decade)
}

/// Formats a time such as "200 ns" or "5 µs", without decimals.
fn tick(ns: f64) -> String {
    let (value, unit) = match ns {
        x if x >= 1e9 => (x / 1e9, "s"),
        x if x >= 1e6 => (x / 1e6, "ms"),
        x if x >= 1e3 => (x / 1e3, "µs"),
        x => (x, "ns"),
    };
    format!("{value:.0} {unit}")
}

fn escape(text: &str) -> String {
    // XML permits no control characters.
    let text = text.chars().filter(|c| !c.is_control()).collect::<String>();
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// An SVG document being written.
struct Page(String);

impl Page {
    fn line(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        let ((a, b), (c, d)) = (from, to);
        let _ = writeln!(
            self.0,
            r#"<line x1="{a:.1}" y1="{b:.1}" x2="{c:.1}" y2="{d:.1}" {style}/>"#
        );
    }

    fn text(&mut self, (x, y): (f64, f64), style: &str, text: &str) {
        let _ = writeln!(self.0, r#"<text x="{x:.1}" y="{y:.1}" {style}>{}</text>"#, escape(text));
    }
}

impl Picture {
    /// Returns the chart as SVG.
    pub fn svg(&self) -> String {
        let series: Vec<&Series> = self.series.iter().filter(|s| !s.sorted_ns.is_empty()).collect();
        let axes = Axes::of(&series);
        let height = axes.bottom + 84.0;
        let mut page = Page(String::new());
        let _ = write!(
            page.0,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
             height=\"{height:.0}\" font-family=\"Noto Sans, Helvetica, Arial, sans-serif\">\n\
             <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
            escape(&self.title)
        );
        page.text(
            (32.0, 48.0),
            &format!(r#"font-size="26" font-weight="bold" fill="{INK}""#),
            &self.title,
        );
        page.text(
            (32.0, 74.0),
            &format!(r#"font-size="15" fill="{FAINT}""#),
            &self.subtitle,
        );
        self.grid(&mut page, &axes);
        let mut groups: Vec<&str> = Vec::new();
        for s in &series {
            if !groups.contains(&s.group.as_str()) {
                groups.push(&s.group);
            }
        }
        let colour = |s: &Series| {
            let at = groups.iter().position(|g| *g == s.group).unwrap_or(0);
            COLOURS[at % COLOURS.len()]
        };
        // Draw baselines first, so that the invocations lie over them.
        for s in series
            .iter()
            .filter(|s| s.dashed)
            .chain(series.iter().filter(|s| !s.dashed))
        {
            curve(&mut page, &axes, s, colour(s));
        }
        for (row, s) in series.iter().enumerate() {
            legend(&mut page, row, s, colour(s));
        }
        page.0 += "</svg>\n";
        page.0
    }

    fn grid(&self, page: &mut Page, axes: &Axes) {
        let (bottom, grid) = (axes.bottom, format!(r#"stroke="{GRID}" stroke-width="1""#));
        let decades = (axes.high / axes.low).log10();
        let mut decade = 10f64.powf(axes.low.log10().floor());
        let mut labelled = f64::NEG_INFINITY;
        while decade <= axes.high * 1.001 {
            for step in [1.0, 2.0, 5.0] {
                let ns = decade * step;
                if ns < axes.low * 0.999 || ns > axes.high * 1.001 {
                    continue;
                }
                let x = axes.x(ns);
                page.line((x, TOP), (x, bottom), &grid);
                if (step == 1.0 || decades <= 4.0) && x - labelled > 52.0 {
                    let style = format!(r#"font-size="14" text-anchor="middle" fill="{FAINT}""#);
                    page.text((x, bottom + 24.0), &style, &tick(ns));
                    labelled = x;
                }
            }
            decade *= 10.0;
        }
        let shares = [0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999];
        let labels = ["0 %", "25 %", "50 %", "75 %", "90 %", "99 %", "99.9 %", "99.99 %"];
        for (share, label) in shares.into_iter().zip(labels) {
            if axes.height(share) > 1.001 {
                continue;
            }
            let y = axes.y(share);
            page.line((LEFT, y), (RIGHT, y), &grid);
            let style = format!(r#"font-size="14" text-anchor="end" fill="{FAINT}""#);
            page.text((LEFT - 10.0, y + 5.0), &style, label);
        }
        let axis = format!(r#"stroke="{FAINT}" stroke-width="1.5""#);
        page.line((LEFT, bottom), (RIGHT, bottom), &axis);
        let style = format!(r#"font-size="15" fill="{INK}""#);
        let middle = (LEFT + RIGHT) / 2.0;
        page.text(
            (middle, bottom + 56.0),
            &format!(r#"{style} text-anchor="middle""#),
            "latency of a call (logarithmic)",
        );
        page.text(
            (32.0, TOP - 16.0),
            &format!(r#"font-size="14" fill="{INK}""#),
            "share of calls that took at most this long",
        );
    }

    /// Returns the chart as PNG, at twice the size for high-resolution displays.
    pub fn png(&self) -> Result<Vec<u8>, Error> {
        use resvg::{tiny_skia, usvg};
        let failed = |e: String| Error::Picture(e);
        let mut options = usvg::Options::default();
        let fonts = options.fontdb_mut();
        fonts.load_font_data(notosans::REGULAR_TTF.to_vec());
        fonts.load_font_data(notosans::BOLD_TTF.to_vec());
        let tree = usvg::Tree::from_str(&self.svg(), &options).map_err(|e| failed(e.to_string()))?;
        let size = tree
            .size()
            .to_int_size()
            .scale_by(2.0)
            .ok_or_else(|| failed("it has no size".into()))?;
        let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height())
            .ok_or_else(|| failed("not enough memory for its pixels".into()))?;
        resvg::render(&tree, tiny_skia::Transform::from_scale(2.0, 2.0), &mut pixels.as_mut());
        pixels.encode_png().map_err(|e| failed(e.to_string()))
    }

    /// Writes `<stem>.png` and `<stem>.svg` into a directory. Returns their paths in this order.
    pub fn write(&self, directory: &Path, stem: &str) -> Result<(PathBuf, PathBuf), Error> {
        let (png, svg) = (
            directory.join(format!("{stem}.png")),
            directory.join(format!("{stem}.svg")),
        );
        std::fs::create_dir_all(directory).map_err(Error::os("make the directory for the picture"))?;
        std::fs::write(&svg, self.svg()).map_err(Error::os("write the picture"))?;
        std::fs::write(&png, self.png()?).map_err(Error::os("write the picture"))?;
        Ok((png, svg))
    }
}

fn curve(page: &mut Page, axes: &Axes, s: &Series, colour: &str) {
    const STEPS: usize = 400;
    let mut points = String::new();
    let mut last = (f64::NAN, f64::NAN);
    for step in 0..=STEPS {
        let share = axes.share(step as f64 / STEPS as f64);
        if share > s.trusted() {
            break;
        }
        let at = (
            axes.x(s.at(share.max(SKIPPED)).clamp(axes.low, axes.high)),
            axes.y(share),
        );
        // One point per pixel is enough.
        if (at.0 - last.0).abs() + (at.1 - last.1).abs() < 1.0 {
            continue;
        }
        let _ = write!(points, "{:.1},{:.1} ", at.0, at.1);
        last = at;
    }
    let dash = if s.dashed {
        r#"stroke-dasharray="7 5" stroke-width="2""#
    } else {
        r#"stroke-width="3""#
    };
    let _ = writeln!(
        page.0,
        r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-linejoin="round" {dash}/>"#,
        points.trim_end()
    );
    let (x, y) = (axes.x(s.at(0.5).clamp(axes.low, axes.high)), axes.y(0.5));
    let fill = if s.dashed { "#ffffff" } else { colour };
    let _ = writeln!(
        page.0,
        r#"<circle cx="{x:.1}" cy="{y:.1}" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"/>"#
    );
}

fn legend(page: &mut Page, row: usize, s: &Series, colour: &str) {
    let (x, y) = (RIGHT + 36.0, TOP + 14.0 + row as f64 * LEGEND_STEP);
    let dash = if s.dashed {
        r#"stroke-dasharray="7 5" stroke-width="2""#
    } else {
        r#"stroke-width="3.5""#
    };
    page.line(
        (x, y - 5.0),
        (x + 36.0, y - 5.0),
        &format!(r#"stroke="{colour}" {dash}"#),
    );
    let weight = if s.dashed { "normal" } else { "bold" };
    page.text(
        (x + 48.0, y),
        &format!(r#"font-size="15" font-weight="{weight}" fill="{INK}""#),
        &s.name,
    );
    let figures = [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")]
        .into_iter()
        // Omit percentiles above the last sample, which would repeat the maximum.
        .filter(|(share, _)| s.sorted_ns.len() as f64 * (1.0 - share) >= 1.0)
        .map(|(share, name)| format!("{name} {}", duration(s.at(share))))
        .collect::<Vec<_>>();
    page.text(
        (x + 48.0, y + 19.0),
        &format!(r#"font-size="13" fill="{FAINT}""#),
        &figures.join("  ·  "),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, base_ns: f64, dashed: bool) -> Series {
        let mut samples = Samples::default();
        (1..=20_000).for_each(|i| samples.push_ns(base_ns * (1.0 + 20.0 / f64::from(i))));
        let make = if dashed { Series::baseline } else { Series::invocation };
        make(name, "shm", &samples)
    }

    fn picture(series: Vec<Series>) -> Picture {
        Picture {
            title: "Latency of <hot> & warm".into(),
            subtitle: "two cores".into(),
            series,
        }
    }

    #[test]
    fn every_series_has_line_and_legend() {
        let svg = picture(vec![
            series("hot & quick", 200.0, false),
            series("cache line", 111.0, true),
        ])
        .svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("hot &amp; quick") && svg.contains("Latency of &lt;hot&gt; &amp; warm"));
        assert_eq!(
            svg.matches("stroke-dasharray").count(),
            2,
            "line and legend of the baseline"
        );
        assert!(svg.contains(">100 ns<") && svg.contains(">99.9 %<"), "{svg}");
    }

    #[test]
    fn svg_and_png_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let (png, svg) = picture(vec![series("hot", 200.0, false)])
            .write(directory.path(), "latency")
            .unwrap();
        assert!(std::fs::read(png).unwrap().starts_with(b"\x89PNG\r\n"));
        assert!(std::fs::read_to_string(svg).unwrap().ends_with("</svg>\n"));
    }

    #[test]
    fn empty_and_equal_samples_are_drawn() {
        let mut equal = Samples::default();
        (0..100).for_each(|_| equal.push_ns(500.0));
        for series in [
            vec![],
            vec![Series::invocation("none", "a", &Samples::default())],
            vec![Series::invocation("equal", "a", &equal)],
        ] {
            let picture = picture(series);
            assert!(
                !picture.svg().contains("NaN") && !picture.svg().contains("inf"),
                "{}",
                picture.svg()
            );
            picture.png().unwrap();
        }
    }

    #[test]
    fn axis_of_shares_is_invertible() {
        let s = series("hot", 200.0, false);
        let axes = Axes::of(&[&s]);
        for share in [0.0, 0.3, 0.9, 0.99, 0.995] {
            assert!((axes.share(axes.height(share)) - share).abs() < 1e-9, "{share}");
        }
        assert_eq!(
            (nice(130.0, true), nice(130.0, false), nice(1000.0, true)),
            (200.0, 100.0, 1000.0)
        );
    }
}
