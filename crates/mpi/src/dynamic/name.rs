//! Names of services: `MPI_Publish_name` and its relatives.
//!
//! The rendezvous keeps them, for the world that was not spawned and all worlds that descend from it. Processes of other
//! programs do not see them: who knows the name of a port can connect.

use dayfly_comm::Invitation;
use dayfly_comm::service::ServiceAction;
use dayfly_protocol::error::{Code, Failure};

use super::bridge::{meanwhile, template};
use crate::error::{Error, Result, class};

/// Variable with the invitation of the world whose names spawned processes share.
pub const VARIABLE: &str = "DAYFLY_MPI_NAMES";

/// The group whose names this process sees.
pub fn group() -> Result<Invitation> {
    match std::env::var(VARIABLE) {
        Ok(text) if super::parent::is_spawned() => Ok(Invitation::from_json(&text)?),
        _ => template(),
    }
}

fn ask(service: &str, action: ServiceAction) -> Result<Option<String>> {
    let (group, service) = (group()?, service.to_owned());
    let outcome: std::result::Result<_, Failure> = meanwhile(move || group.service(&service, action))?;
    outcome.map_err(|failure| {
        let code = match failure.code {
            Code::InvalidRequest | Code::TooLarge => class::SERVICE,
            Code::NotFound => class::NAME,
            Code::Forbidden => class::ACCESS,
            _ => class::OTHER,
        };
        Error {
            failure: Some(failure.code),
            ..Error::new(code, failure.message)
        }
    })
}

/// `MPI_Publish_name`.
pub fn publish(service: &str, port: String) -> Result<()> {
    match ask(service, ServiceAction::Publish { text: port.clone() })? {
        Some(other) if other != port => {
            let text = format!("another port is published as {service}; unpublish that one first");
            Err(Error::new(class::SERVICE, text))
        }
        _ => Ok(()),
    }
}

/// `MPI_Lookup_name`.
pub fn look_up(service: &str) -> Result<String> {
    ask(service, ServiceAction::LookUp)?.ok_or_else(|| {
        let text = format!(
            "no port is published as {service} in this program; names are seen by the program that has published them, \
             and by processes that it has spawned"
        );
        Error::new(class::NAME, text)
    })
}

/// `MPI_Unpublish_name`.
pub fn unpublish(service: &str) -> Result<()> {
    let found = ask(service, ServiceAction::Withdraw)?;
    found.map(drop).ok_or_else(|| {
        let text = format!("no port is published as {service}");
        Error::new(class::SERVICE, text)
    })
}
