//! Charts as SVG: one panel below the other, so that a chart can be read on a narrow page.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
const PLOT_HEIGHT: f64 = 250.0;
/// Room for the title and its subtitle.
const HEAD: f64 = 82.0;
/// Room for a panel's title and legend, without the legend's lines.
const PANEL_HEAD: f64 = 34.0;
/// Room for the labels of the horizontal axis.
const PANEL_FOOT: f64 = 62.0;
const LEGEND_LINE: f64 = 22.0;
/// Mean width of a letter of the legend.
const LETTER: f64 = 7.6;
/// Intervals of an axis, about.
const INTERVALS: f64 = 5.0;
/// Letters of a line of the subtitle at most.
const LINE_LETTERS: usize = 96;
/// Colours by Okabe and Ito, distinct for any colour vision and on paper.
const COLOURS: [&str; 8] = [
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D", "#7A7A00",
];
const INK: &str = "#1f2933";
const FAINT: &str = "#52606d";
const GRID: &str = "#e4e7eb";

/// How the points of a series are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Joined by lines.
    Line,
    /// A step at each point.
    Steps,
    /// Marks alone.
    Marks,
}

/// Points of one name.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub name: String,
    pub shape: Shape,
    pub points: Vec<(f64, f64)>,
}

/// One plot.
#[derive(Debug, Clone)]
pub(super) struct Panel {
    /// What it shows.
    pub title: String,
    /// Label of the horizontal axis, with the unit.
    pub x: &'static str,
    /// Label of the vertical axis, with the unit.
    pub y: &'static str,
    /// The vertical axis begins at 0 in any case.
    pub from_zero: bool,
    pub series: Vec<Series>,
}

/// A file.
#[derive(Debug, Clone)]
pub(super) struct Chart {
    pub title: String,
    pub subtitle: String,
    pub panels: Vec<Panel>,
}

/// An axis: its ends, and the distance of its marks.
#[derive(Debug, Clone, Copy)]
struct Axis {
    from: f64,
    to: f64,
    step: f64,
}

impl Axis {
    /// The axis that holds all values, with ends at marks.
    fn of(values: impl Iterator<Item = f64>, from_zero: bool) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(is_drawn) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if from_zero {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        if high - low < 1e-12 {
            high = low + 1.0;
        }
        let rough = (high - low) / INTERVALS;
        let power = 10_f64.powf(rough.log10().floor());
        let step = power
            * [1.0, 2.0, 5.0, 10.0]
                .into_iter()
                .find(|by| by * power >= rough)
                .unwrap_or(10.0);
        Self {
            from: (low / step + 1e-9).floor() * step,
            to: (high / step - 1e-9).ceil() * step,
            step,
        }
    }

    /// Where a value lies: 0 at the begin, 1 at the end.
    fn place(&self, value: f64) -> f64 {
        ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    fn marks(&self) -> impl Iterator<Item = f64> + '_ {
        let count = ((self.to - self.from) / self.step).round() as u32;
        (0..=count).map(|number| self.from + f64::from(number) * self.step)
    }

    fn text(&self, value: f64) -> String {
        let decimals = (-self.step.log10().floor()).clamp(0.0, 6.0) as usize;
        let text = format!("{value:.decimals$}");
        if text.trim_start_matches('-').trim_matches(['0', '.']).is_empty() {
            "0".into()
        } else {
            text
        }
    }
}

/// Whether a value can be drawn: no measured one is beyond.
fn is_drawn(value: &f64) -> bool {
    value.abs() < 1e15
}

/// Text of a document, with its special characters escaped.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Chart {
    /// The document. It is narrower where the page that shows it is.
    pub(super) fn to_svg(&self) -> String {
        let lines = wrap(&self.subtitle);
        let head = HEAD + 20.0 * (lines.len() as f64 - 1.0);
        let height = head + self.panels.iter().map(Panel::height).sum::<f64>();
        let mut svg = String::new();
        let title = escape(&self.title);
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" style=\"max-width:100%;height:auto\" role=\"img\" \
             font-family=\"sans-serif\" font-size=\"15\" fill=\"{INK}\">\n<title>{title}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
             <text x=\"16\" y=\"32\" font-size=\"20\" font-weight=\"600\">{title}</text>\n"
        );
        for (number, line) in lines.iter().enumerate() {
            let y = 56.0 + 20.0 * number as f64;
            let _ = writeln!(svg, "<text x=\"16\" y=\"{y}\" fill=\"{FAINT}\">{}</text>", escape(line));
        }
        let mut top = head;
        for panel in &self.panels {
            panel.draw(&mut svg, top);
            top += panel.height();
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// Breaks a text at spaces.
fn wrap(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last] = word.into();
        } else if lines[last].len() + word.len() < LINE_LETTERS {
            lines[last].push(' ');
            lines[last].push_str(word);
        } else {
            lines.push(word.into());
        }
    }
    lines
}

impl Panel {
    /// Where the names of series stand: the line and the left end of each.
    fn legend(&self) -> Vec<(usize, f64)> {
        let (mut line, mut x) = (0, LEFT);
        let mut places = Vec::new();
        for series in &self.series {
            let width = 34.0 + LETTER * series.name.chars().count() as f64;
            if x + width > WIDTH - RIGHT && x > LEFT {
                (line, x) = (line + 1, LEFT);
            }
            places.push((line, x));
            x += width;
        }
        places
    }

    fn plot_top(&self) -> f64 {
        let lines = self.legend().last().map_or(0, |(line, _)| line + 1);
        PANEL_HEAD + LEGEND_LINE * lines as f64
    }

    fn height(&self) -> f64 {
        self.plot_top() + PLOT_HEIGHT + PANEL_FOOT
    }

    fn draw(&self, svg: &mut String, top: f64) {
        let _ = writeln!(
            svg,
            "<text x=\"16\" y=\"{:.1}\" font-weight=\"600\">{}</text>",
            top + 16.0,
            escape(&self.title)
        );
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Axis::of(points().map(|point| point.0), false);
        let y = Axis::of(points().map(|point| point.1), self.from_zero);
        let plot = Plot {
            x,
            y,
            top: top + self.plot_top(),
        };
        plot.draw_axes(svg, self.x, self.y);
        for (number, (series, (line, left))) in self.series.iter().zip(self.legend()).enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let middle = top + PANEL_HEAD + LEGEND_LINE * line as f64;
            mark(svg, number, left + 8.0, middle, 5.0);
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"14\">{}</text>",
                left + 18.0,
                middle + 5.0,
                escape(&series.name)
            );
            plot.draw_series(svg, series, number, colour);
        }
    }
}

/// The area of a panel in which its points are.
struct Plot {
    x: Axis,
    y: Axis,
    top: f64,
}

impl Plot {
    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (
            LEFT + (WIDTH - LEFT - RIGHT) * self.x.place(x),
            self.top + PLOT_HEIGHT * (1.0 - self.y.place(y)),
        )
    }

    fn draw_axes(&self, svg: &mut String, x_label: &str, y_label: &str) {
        let (right, bottom) = (WIDTH - RIGHT, self.top + PLOT_HEIGHT);
        for value in self.y.marks() {
            let (_, y) = self.at((self.x.from, value));
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"{GRID}\"/><text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\" \
                 text-anchor=\"end\" fill=\"{FAINT}\">{}</text>",
                LEFT - 8.0,
                y + 4.5,
                self.y.text(value)
            );
        }
        for value in self.x.marks() {
            let (x, _) = self.at((value, self.y.from));
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {bottom:.1}v5\" stroke=\"{FAINT}\"/><text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"13\" \
                 text-anchor=\"middle\" fill=\"{FAINT}\">{}</text>",
                bottom + 20.0,
                self.x.text(value)
            );
        }
        let middle = self.top + PLOT_HEIGHT / 2.0;
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {bottom:.1}H{right}\" stroke=\"{FAINT}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(20 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            LEFT.midpoint(right),
            bottom + 42.0,
            escape(x_label),
            escape(y_label)
        );
    }

    fn draw_series(&self, svg: &mut String, series: &Series, number: usize, colour: &str) {
        let places: Vec<_> = series
            .points
            .iter()
            .filter(|(x, y)| is_drawn(x) && is_drawn(y))
            .map(|point| self.at(*point))
            .collect();
        if series.shape == Shape::Marks {
            for (x, y) in places {
                mark(svg, number, x, y, 4.0);
            }
            return;
        }
        let mut path = String::new();
        for (index, (x, y)) in places.iter().enumerate() {
            let _ = match (index, series.shape) {
                (0, _) => write!(path, "M{x:.1} {y:.1}"),
                (_, Shape::Steps) => write!(path, "H{x:.1}V{y:.1}"),
                _ => write!(path, "L{x:.1} {y:.1}"),
            };
        }
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
        if series.shape == Shape::Line && places.len() <= 40 {
            for (x, y) in places {
                mark(svg, number, x, y, 4.0);
            }
        }
    }
}

/// A mark of a series, in its colour and its form.
fn mark(svg: &mut String, number: usize, x: f64, y: f64, size: f64) {
    let colour = COLOURS[number % COLOURS.len()];
    let _ = match number % 4 {
        0 => writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{size}\" fill=\"{colour}\"/>"
        ),
        1 => writeln!(
            svg,
            "<path d=\"M{:.1} {y:.1}h{w}M{x:.1} {:.1}v{w}\" stroke=\"{colour}\" stroke-width=\"2.4\"/>",
            x - size,
            y - size,
            w = 2.0 * size
        ),
        2 => writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{w}\" height=\"{w}\" fill=\"{colour}\"/>",
            x - size,
            y - size,
            w = 2.0 * size
        ),
        _ => writeln!(
            svg,
            "<path d=\"M{:.1} {:.1}l{w} {w}m0 -{w}l-{w} {w}\" stroke=\"{colour}\" stroke-width=\"2.4\"/>",
            x - size,
            y - size,
            w = 2.0 * size
        ),
    };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chart(points: Vec<(f64, f64)>, shape: Shape) -> Chart {
        let panel = Panel {
            title: "a < b & c".into(),
            x: "time (s)",
            y: "use (%)",
            from_zero: true,
            series: vec![Series {
                name: "one".into(),
                shape,
                points,
            }],
        };
        Chart {
            title: "Title".into(),
            subtitle: "Subtitle".into(),
            panels: vec![panel.clone(), panel],
        }
    }

    #[test]
    fn text_is_escaped_and_axes_are_named() {
        let svg = chart(vec![(0.0, 1.0), (2.0, 3.0)], Shape::Line).to_svg();
        for text in ["a &lt; b &amp; c", "time (s)", "use (%)", "<title>Title</title>"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn axis_ends_at_marks_around_all_values() {
        let axis = Axis::of([0.3, 7.2].into_iter(), false);
        assert_eq!((axis.from, axis.to, axis.step), (0.0, 8.0, 2.0));
        let texts: Vec<_> = axis.marks().map(|value| axis.text(value)).collect();
        assert_eq!(texts, ["0", "2", "4", "6", "8"]);
        assert_eq!(Axis::of(std::iter::empty(), true).to, 1.0);
    }

    #[test]
    fn long_legend_goes_on_in_next_line() {
        let mut chart = chart(vec![(0.0, 0.0)], Shape::Marks);
        let height = chart.panels[0].height();
        let series = chart.panels[0].series[0].clone();
        chart.panels[0].series = vec![series; 30];
        assert!(chart.panels[0].height() >= height + 2.0 * LEGEND_LINE);
        assert!(chart.panels[0].legend().iter().all(|(_, x)| *x < WIDTH - RIGHT));
    }

    proptest! {
        #[test]
        fn any_points_are_drawn_within_the_plot(
            points in prop::collection::vec((prop::num::f64::ANY, prop::num::f64::ANY), 0..20),
        ) {
            for shape in [Shape::Line, Shape::Steps, Shape::Marks] {
                let svg = chart(points.clone(), shape).to_svg();
                prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }
}
