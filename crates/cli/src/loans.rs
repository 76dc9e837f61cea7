//! Options for what the calls of warm workers lend and borrow.

use clap::builder::{BoolishValueParser, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args};
use dayfly_protocol::api::{Borrow, LoanTerms};

/// What calls lend and borrow.
#[derive(Debug, Args)]
pub struct LoanArguments {
    /// Whether calls of warm workers lend what they own and do not use, where the node harvests
    #[arg(
        long,
        value_name = "YES",
        default_value = "yes",
        action = ArgAction::Set,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true
    )]
    lend: bool,
    /// What such calls may borrow; a call that cannot return borrowed memory in time is ended
    #[arg(long, value_name = "WHAT", default_value = "cpu", value_parser = borrow())]
    borrow: Borrow,
}

impl LoanArguments {
    /// Returns the terms of the lease.
    pub fn terms(&self) -> LoanTerms {
        LoanTerms {
            lend: self.lend,
            borrow: self.borrow,
        }
    }
}

/// Returns the parser of what calls may borrow.
pub fn borrow() -> impl TypedValueParser<Value = Borrow> {
    PossibleValuesParser::new(Borrow::ALL.map(Borrow::name)).try_map(|name| name.parse::<Borrow>())
}
