//! `dayfly function profile`: what nodes learnt about a function's calls.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use dayfly_client::encoded;
use dayfly_command::Global;
use dayfly_protocol::api::{CallResources, FunctionProfile, ProfileScores};
use dayfly_protocol::error::Failure;

use super::duplicator::Sample;
use crate::{connect, output};

/// Show what nodes learnt about your calls of a function, and why it lends or does not. Each node learns from its own
/// long calls; `--harvest watch` is enough.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly function profile resize
  dayfly function profile resize --sample photo.json --sizes 100

With --sample, the function first runs as ordinary tasks of yours, on inputs of evenly spaced sizes, so that nodes need no further
calls to learn it.")]
pub struct Profile {
    /// Name or id of a registered function, or the name of any function that you call; NAME@HASH for one version
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    function: String,
    /// The tenant whose calls count, for operators [default: you]
    #[arg(long, value_name = "TENANT", conflicts_with = "sample")]
    tenant: Option<String>,
    #[command(flatten)]
    sample: Sample,
}

/// Prints the profiles.
pub fn run(wanted: &Profile, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    wanted.sample.run(&wanted.function, &client)?;
    let mut path = format!("/v1/functions/{}/profile", encoded(&wanted.function));
    if let Some(tenant) = &wanted.tenant {
        path += &format!("?tenant={}", encoded(tenant));
    }
    let profiles: Vec<FunctionProfile> = client.get(&path).map_err(|error| error.0)?;
    output::line(&if global.json {
        output::json(&profiles)?
    } else {
        profiles.iter().map(described).collect::<Vec<_>>().join("\n\n")
    });
    Ok(())
}

fn described(profile: &FunctionProfile) -> String {
    let learnt = &profile.learnt;
    let mut text = format!(
        "Function {} on node {}\n  harvest     {}\n  samples     {}, of {} needed\n  model       {}\n",
        output::plain(&learnt.function),
        output::plain(&profile.node_name),
        profile.mode,
        learnt.samples,
        learnt.samples_needed,
        learnt.model.name().replace('_', " "),
    );
    if let Some(scores) = &learnt.scores {
        text += &format!("  scores      {}\n", scored(scores));
    }
    text += &format!("  owns        {}\n", amount(&learnt.owned));
    if let Some(high) = &learnt.high {
        text += &format!("  needs up to {}\n", amount(high));
    }
    text + &format!("\n{}", output::plain(&learnt.reason))
}

fn scored(scores: &ProfileScores) -> String {
    format!(
        "the forest loses {:.2} and the histogram {:.2}; classes right: {:.0} % of processor time, {:.0} % of memory; R2 \
         of the duration {:.2}",
        scores.forest_loss,
        scores.histogram_loss,
        scores.cpu_accuracy * 100.0,
        scores.memory_accuracy * 100.0,
        scores.duration_r2,
    )
}

fn amount(resources: &CallResources) -> String {
    let cores = resources.milli_cores as f64 / 1_000.0;
    format!("{cores:.2} cores, {}", output::size(resources.memory_bytes))
}

#[cfg(test)]
mod tests {
    use dayfly_protocol::api::{HarvestMode, LearntProfile, ProfileModel};
    use dayfly_protocol::ids::NodeId;

    use super::*;

    #[test]
    fn profile_is_shown_with_its_reason() {
        let profile = FunctionProfile {
            node: NodeId([1; 16]),
            node_name: "rack\u{1b}".into(),
            mode: HarvestMode::Watch,
            learnt: LearntProfile {
                function: "m.f@12345678".into(),
                samples: 30,
                samples_needed: 21,
                model: ProfileModel::Histogram,
                scores: None,
                owned: CallResources {
                    milli_cores: 1_500,
                    memory_bytes: 1 << 30,
                },
                high: None,
                lends: CallResources::default(),
                reason: "It lends nothing.".into(),
            },
        };
        let text = described(&profile);
        assert!(
            text.starts_with("Function m.f@12345678 on node rack\\u{1b}\n"),
            "{text}"
        );
        assert!(
            text.contains("samples     30, of 21 needed") && text.contains("1.50 cores"),
            "{text}"
        );
        assert!(text.ends_with("\n\nIt lends nothing."), "{text}");
    }
}
