//! Names of services: texts that the ranks of a group publish for each other, and for those to which they pass the
//! group's invitation. The rendezvous keeps them for as long as the group has ranks.

use std::path::Path;
use std::time::{Duration, Instant};

use dayfly_protocol::error::{Code, Failure};
use dayfly_rendezvous::client::RendezvousClient;
use dayfly_rendezvous::keys::GroupKeys;
use dayfly_rendezvous::messages::{FromRank, ServiceRequest, ToRank, VERSION};

pub use dayfly_rendezvous::messages::ServiceAction;

use crate::connector;
use crate::invitation::Invitation;

/// Limit for a request.
const LIMIT: Duration = Duration::from_secs(10);

impl Invitation {
    /// Publishes, looks up or withdraws the text of a service. Returns the text that was published before, if any.
    ///
    /// # Errors
    /// [`Code::Forbidden`] in a sandbox without a network, [`Code::NotFound`] when the group has no ranks,
    /// [`Code::InvalidRequest`] or [`Code::TooLarge`] for a name or text that is too long, and errors of the connection.
    pub fn service(&self, service: &str, action: ServiceAction) -> Result<Option<String>, Failure> {
        if Path::new(connector::SOCKET).exists() {
            let text = "a rank in a sandbox without a network can neither publish names nor look them up; \
                        start it with a network, or pass the text to the other program by other means";
            return Err(Failure::new(Code::Forbidden, text));
        }
        let secret = hex::decode(&self.secret)
            .map_err(|_| Failure::new(Code::InvalidRequest, "the group's secret is not hexadecimal"))?;
        let keys = GroupKeys::new(&self.name, &self.run, &secret)?;
        let deadline = Instant::now() + LIMIT;
        let mut rendezvous = RendezvousClient::open(&self.rendezvous, self.key.as_ref(), &keys, deadline)?;
        rendezvous.send(&FromRank::Service(ServiceRequest {
            version: VERSION,
            group: self.name.clone(),
            service: service.into(),
            action,
        }))?;
        match rendezvous.wait(deadline)? {
            Some(ToRank::Published { text }) => Ok(text),
            Some(_) => Err(Failure::new(
                Code::ProtocolViolation,
                "the rendezvous responds to something else; use one release of Dayfly",
            )),
            None => Err(Failure::new(
                Code::TimedOut,
                format!("the rendezvous at {} did not respond in time", self.rendezvous),
            )),
        }
    }
}
