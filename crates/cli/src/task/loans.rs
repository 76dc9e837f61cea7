//! What a task owned, used, lent and borrowed, in `dayfly task show`.

use dayfly_client::Client;
use dayfly_protocol::api::{LoanPoint, SeriesSum, TaskLoans};
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tasks::TaskStatus;
use serde::Serialize;

use crate::output;

/// A task with its loans, as JSON.
#[derive(Debug, Serialize)]
pub struct ShownTask<'a> {
    #[serde(flatten)]
    pub task: &'a TaskStatus,
    /// Absent if they are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loans: Option<&'a TaskLoans>,
}

/// Returns the loans of a task; `None` if they are not known.
pub fn of(task: &TaskStatus, client: &Client) -> Result<Option<TaskLoans>, Failure> {
    if task.ended_at_ms == 0 || task.attempts == 0 {
        return Ok(None);
    }
    match client.get(&format!("/v1/tasks/{}/loans", task.id)) {
        Ok(loans) => Ok(Some(loans)),
        Err(error) if error.code() == Code::NotFound => Ok(None),
        Err(error) => Err(error.0),
    }
}

/// Bars of eight heights.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Indentation of continued fields.
const INDENT: &str = "\n              ";

/// Returns the sums as text, with a chart of the processor time if `has_chart`.
pub fn described(loans: &TaskLoans, has_chart: bool) -> String {
    let sums = &loans.sums;
    let named = [
        ("owned", sums.owned),
        ("used", sums.used),
        ("lent", sums.lent),
        ("borrowed", sums.borrowed),
    ];
    let line = |(name, sum): (&str, SeriesSum)| {
        let (core_s, gib_s) = (sum.core_us as f64 / 1e6, sum.mib_s as f64 / 1024.0);
        format!("{INDENT}{name:<8} {core_s:>9.3} core seconds {gib_s:>9.3} GiB seconds")
    };
    let lines: String = named.into_iter().map(line).collect();
    let chart = if has_chart { chart(loans) } else { String::new() };
    format!(
        "\n  loans       measured for {}{lines}{chart}",
        output::span(loans.us / 1_000)
    )
}

/// Returns one line for each quantity: a character is a span of time, and its height the cores.
fn chart(loans: &TaskLoans) -> String {
    type Cores = fn(&LoanPoint) -> u64;
    let quantities: [(&str, Cores); 4] = [
        ("owned", |point| point.owned.milli_cores),
        ("used", |point| point.used.milli_cores),
        ("lent", |point| point.lent.milli_cores),
        ("borrowed", |point| point.borrowed.milli_cores),
    ];
    let all = loans.points.iter();
    let most = all.flat_map(|point| quantities.map(|(_, of)| of(point))).max();
    let most = most.unwrap_or_default().max(1);
    let height = |cores: u64| {
        // Anything above nothing is seen.
        let eighths = (u128::from(cores) * 8).div_ceil(u128::from(most));
        BARS[usize::try_from(eighths).unwrap_or(8).min(8)]
    };
    let line = |(name, of): (&str, Cores)| {
        let bars: String = loans.points.iter().map(|point| height(of(point))).collect();
        format!("{INDENT}{name:<8} |{bars}|")
    };
    let title = format!("{INDENT}cores over time, up to {:.2}:", most as f64 / 1_000.0);
    title + &quantities.into_iter().map(line).collect::<String>()
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::api::{CallResources, LoanSeries};
    use dayfly_protocol::ids::TaskId;

    use super::*;

    fn loans() -> TaskLoans {
        let cores = |milli_cores| CallResources {
            milli_cores,
            memory_bytes: 1 << 30,
        };
        let point = |used, borrowed| LoanPoint {
            us: 1_000_000,
            owned: cores(1_000),
            used: cores(used),
            lent: CallResources::default(),
            borrowed: cores(borrowed),
        };
        let points = vec![point(1_000, 0), point(2_000, 1_000), point(1, 0)];
        LoanSeries::checked(points).unwrap().of_task(TaskId([1; 16]))
    }

    #[test]
    fn loans_are_shown_with_units() {
        let text = described(&loans(), false);
        assert!(text.starts_with("\n  loans       measured for 3.0s\n"), "{text}");
        assert!(
            text.contains("owned        3.000 core seconds     3.000 GiB seconds"),
            "{text}"
        );
        assert!(
            text.contains("borrowed     1.000 core seconds     3.000 GiB seconds"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 6);
    }

    #[test]
    fn chart_is_drawn_up_to_the_largest_amount() {
        let text = described(&loans(), true);
        for line in [
            "up to 2.00:",
            "owned    |▄▄▄|",
            "used     |▄█▁|",
            "lent     |   |",
            "borrowed | ▄ |",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let nothing = TaskLoans {
            points: Vec::new(),
            ..loans()
        };
        assert!(described(&nothing, true).contains("owned    ||"));
    }
}
