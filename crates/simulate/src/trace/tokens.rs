//! Arrivals of a language model's service, in the schema of the Azure LLM inference traces: `TIMESTAMP`,
//! `ContextTokens`, `GeneratedTokens`.
//!
//! The sizes of a call are its tokens. What a client can state before the call is the context, so that is its feature.
//! The set has no demand for cores: each call runs the code of `dynamic_html`, the measured function that generates text
//! too, at a size whose place between smallest and largest is that of the call's tokens, context and generated, between
//! none and the most in the trace.

use dayfly_harvest::random::Random;
use dayfly_harvest::{Features, TenantId};

use super::text::Table;
use super::{MAX_ARRIVAL_US, MAX_CALLS, NamedText, Names, Problem, Trace, TraceError};
use crate::call::Call;
use crate::functions::Functions;

/// The first column.
pub const FIRST_COLUMN: &str = "TIMESTAMP";
/// The measured function whose code the calls run.
const CODE: &str = "dynamic_html";
/// The name of the trace's only function.
const NAME: &str = "language_model";
/// Tokens of one call at most.
const MAX_TOKENS: u64 = 100_000_000;
/// Bytes of a token in the arguments, about: four letters of English.
const TOKEN_BYTES: u64 = 4;

struct Arrival {
    time_us: u64,
    context: u64,
    tokens: u64,
}

/// Reads arrivals, in any order. Demand is drawn by `seed`.
pub fn read(file: NamedText<'_>, functions: &Functions, seed: u64) -> Result<Trace, TraceError> {
    let mut table = Table::new(file)?;
    let columns = [
        table.require(FIRST_COLUMN)?,
        table.require("ContextTokens")?,
        table.require("GeneratedTokens")?,
    ];
    let mut arrivals: Vec<Arrival> = Vec::new();
    let mut fields = Vec::new();
    let (mut first, mut last) = (u64::MAX, 0);
    while let Some(line) = table.next(&mut fields)? {
        if arrivals.len() >= MAX_CALLS {
            return Err(line.error(0, Problem::TooManyCalls));
        }
        let time_us = line.time_us(columns[0])?;
        let tokens = |column| line.whole(column, MAX_TOKENS, "a whole number of tokens from 0 to 100000000");
        let (context, generated) = (tokens(columns[1])?, tokens(columns[2])?);
        (first, last) = (first.min(time_us), last.max(time_us));
        if last - first > MAX_ARRIVAL_US {
            return Err(line.error(columns[0], Problem::Late));
        }
        arrivals.push(Arrival {
            time_us,
            context,
            tokens: context + generated,
        });
    }
    let most = arrivals.iter().map(|arrival| arrival.tokens).max();
    let most = most.ok_or_else(|| table.error(Problem::Empty))?.max(1);
    let code = functions.by_name(CODE).unwrap_or(&functions.list()[0]);
    let (smallest, largest) = code.sizes();
    let tenant = TenantId(0);
    let mut names = Names::default();
    let function = names.id(tenant, NAME).map_err(|problem| table.error(problem))?;
    let mut random = Random::for_purpose(seed, 0);
    let calls = arrivals.iter().map(|arrival| {
        let size = smallest + (largest - smallest) * (arrival.tokens as f64 / most as f64);
        Call {
            arrival_us: arrival.time_us - first,
            function,
            tenant,
            features: Features {
                argument_bytes: arrival.context * TOKEN_BYTES,
                sizes: [arrival.context as f64, 0.0, 0.0, 0.0],
            },
            owned: code.configured(),
            phases: code.draw(size, &mut random),
            lend: true,
            borrow_cpu: true,
            borrow_memory: false,
        }
    });
    Ok(Trace::new(calls.collect(), names))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:04.0319600,3180,8\n\
        2023-11-16 18:17:03.9799600,110,10\n";

    fn read_text(text: &str) -> Result<Trace, TraceError> {
        let file = NamedText {
            name: "llm.csv",
            bytes: text.as_bytes(),
        };
        Trace::read(&[file], Functions::measured(), 1)
    }

    #[test]
    fn arrivals_count_from_the_earliest() {
        let trace = read_text(TEXT).unwrap();
        let calls: Vec<_> = trace
            .calls()
            .iter()
            .map(|call| (call.arrival_us, call.features.sizes[0]))
            .collect();
        assert_eq!(calls, [(0, 110.0), (52_000, 3180.0)]);
        assert!(trace.calls()[0].core_us() < trace.calls()[1].core_us());
    }

    #[test]
    fn errors_name_line_and_column() {
        for (text, place) in [
            (TEXT.replace("3180", "many"), "2:29:"),
            (TEXT.replace("18:17:04", "25:17:04"), "2:1:"),
            (TEXT.replace("2023-11-16 18:17:03", "2001-11-16 18:17:03"), "3:1:"),
            (TEXT.replace("ContextTokens", "Context"), "1:1:"),
            (TEXT.replace(",10\n", "\n"), "3:1:"),
        ] {
            let error = read_text(&text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("llm.csv:{place}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn damaged_lines_are_read_or_refused(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        ) {
            let mut bytes = TEXT.as_bytes().to_vec();
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let file = NamedText { name: "f", bytes: &bytes };
            let _ = read(file, Functions::measured(), 1);
        }
    }
}
