//! Login in a browser on any machine: the device authorization grant (RFC 8628).

use std::time::{Duration, Instant};

use dayfly_protocol::error::{Code, Failure};
use serde::Deserialize;

use super::{Provider, tell};

const GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// Maximum time limit of a login, whatever the provider allows.
const LONGEST: Duration = Duration::from_secs(3600);
const SLOWER: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct Begun {
    device_code: String,
    user_code: String,
    verification_uri: String,
    verification_uri_complete: Option<String>,
    expires_in: u64,
    #[serde(default = "five")]
    interval: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Beginning {
    Begun(Begun),
    Refused {
        error: String,
        error_description: Option<String>,
    },
}

fn five() -> u64 {
    5
}

/// Prints an address and a code, and waits until the code was entered there.
pub fn id_token(provider: &Provider<'_>, address: &str) -> Result<String, Failure> {
    let client = provider.info.client_id.as_str();
    let begun = match provider.post(address, &[("client_id", client), ("scope", &provider.scope())])? {
        Beginning::Begun(begun) => begun,
        Beginning::Refused {
            error,
            error_description,
        } => {
            let text = format!(
                "{} begins no login: {:.300}; ask the site whether it knows the client `{client}`",
                provider.info.issuer,
                error_description.unwrap_or(error)
            );
            return Err(Failure::new(Code::Unauthorized, text));
        }
    };
    match &begun.verification_uri_complete {
        Some(complete) => tell(&format!(
            "Open this address in a browser, on any machine, and check that it shows the code {}:\n\n  {complete}\n",
            begun.user_code
        )),
        None => tell(&format!(
            "Open this address in a browser, on any machine:\n\n  {}\n\nand type in the code {}\n",
            begun.verification_uri, begun.user_code
        )),
    }
    let until = Instant::now() + Duration::from_secs(begun.expires_in).min(LONGEST);
    let mut pause = Duration::from_secs(begun.interval.clamp(1, 60));
    loop {
        if Instant::now() + pause > until {
            let text = "nobody typed the code in while it was good; log in again";
            return Err(Failure::new(Code::TimedOut, text));
        }
        std::thread::sleep(pause);
        let answer = provider.exchange(&[
            ("grant_type", GRANT),
            ("device_code", &begun.device_code),
            ("client_id", client),
        ])?;
        match (answer.id_token.clone(), answer.error.as_deref()) {
            (Some(token), _) => return Ok(token),
            (None, Some("authorization_pending")) => {}
            (None, Some("slow_down")) => pause += SLOWER,
            _ => return Err(provider.refused(&answer)),
        }
    }
}
