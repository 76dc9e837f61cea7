//! `dayfly login`: exchanges a login at an institution's identity provider for a token.

mod browser;
mod device;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use dayfly_client::{default_state_dir, former_name};
use dayfly_command::Global;
use dayfly_protocol::api::Connection;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tenancy::{LoginInfo, LoginRequest, NewToken};
use serde::Deserialize;
use serde_json::json;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use crate::manager::write_private;
use crate::{connect, output};

/// Limit of a request to the provider.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
/// Maximum size of an ID token in bytes.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// Log in with your institution's identity provider, and write a connection file.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly login --manager login.json                  prints an address and a code for a browser on any machine
  dayfly login --manager login.json --browser        uses a browser on this machine
  dayfly login --manager login.json --id-token -     reads an existing ID token from standard input

Get `login.json` from your site: its manager writes it beside connection.json, without a token. The file that this command writes
contains a token: everyone who can read it can act for your tenant until it expires. `dayfly token list` shows the token,
`dayfly token revoke` revokes it.")]
pub struct Arguments {
    /// Use a browser on this machine, which returns the result by itself
    #[arg(long, conflicts_with = "id_token")]
    browser: bool,
    /// Use an existing ID token of the provider: a file, or - for standard input
    #[arg(long, value_name = "FILE")]
    id_token: Option<PathBuf>,
    /// Path of the connection file, readable only by you [default: where all commands find it]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let client = connect::manager(global)?;
    let path = match &arguments.output {
        Some(path) => path.clone(),
        None => usual_place(&client.manager_url().map_err(|error| error.0)?)?,
    };
    let id_token = match &arguments.id_token {
        Some(path) => read_token(path)?,
        None => {
            let info: LoginInfo = client.get("/v1/login").map_err(|error| error.0)?;
            let provider = Provider::of(&info)?;
            match (&info.device_authorization_endpoint, &info.authorization_endpoint) {
                (Some(address), _) if !arguments.browser => device::id_token(&provider, address)?,
                (_, Some(address)) => browser::id_token(&provider, address)?,
                _ => {
                    let text = format!(
                        "{} offers no way to log in from a terminal; show an ID token of its by --id-token",
                        info.issuer
                    );
                    return Err(Failure::new(Code::InvalidRequest, text));
                }
            }
        }
    };
    let request = LoginRequest { id_token };
    let made: NewToken = client.post("/v1/login", &request).map_err(|error| error.0)?;
    let connection = Connection {
        manager: made.manager,
        ca_pem: made.ca_pem,
        token: made.token,
        others: made.others,
    };
    let file =
        serde_json::to_string_pretty(&connection).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    write_private(&path, &file)?;
    output::line(&if global.json {
        output::json(&json!({ "output": path, "token": made.status }))?
    } else {
        let until = output::date(made.status.expires_at_ms);
        let found = match arguments.output {
            Some(_) => format!("Use it with DAYFLY_MANAGER={}.", path.display()),
            None => "Every command finds it by itself.".to_owned(),
        };
        format!(
            "You act for {} as {} until {until}. {found}",
            made.status.tenant, made.status.role
        )
    });
    Ok(())
}

/// Returns the default path of the connection file. Errors if it contains something else.
fn usual_place(manager: &str) -> Result<PathBuf, Failure> {
    let refused = |why: String| Failure::new(Code::InvalidRequest, format!("{why}; name a file by --output"));
    let dir = default_state_dir().ok_or_else(|| refused("there is no home directory to keep it in".into()))?;
    if let Some(former) = former_name::beside(&dir) {
        return Err(refused(former_name::message(&former, &dir)));
    }
    let path = dir.join("connection.json");
    let kept = std::fs::read(&path)
        .ok()
        .map(|json| serde_json::from_slice::<Connection>(&json));
    match kept {
        Some(Ok(kept)) if kept.manager != manager => {
            return Err(refused(format!(
                "{} is of another manager ({})",
                path.display(),
                kept.manager
            )));
        }
        _ if dir.join("manager.db").exists() => {
            return Err(refused(format!("{} is of a manager of your own", path.display())));
        }
        _ => {}
    }
    std::fs::create_dir_all(&dir).map_err(|error| refused(format!("{} cannot be made: {error}", dir.display())))?;
    Ok(path)
}

fn read_token(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().take(MAX_TOKEN_BYTES).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_TOKEN_BYTES).read_to_string(&mut text))
    };
    read.map_err(|error| {
        let text = format!("no ID token can be read from {}: {error}", path.display());
        Failure::new(Code::InvalidRequest, text)
    })?;
    Ok(text.trim().to_owned())
}

/// The identity provider, as the manager describes it.
struct Provider<'a> {
    info: &'a LoginInfo,
    agent: Agent,
}

/// Response of a token endpoint.
#[derive(Debug, Deserialize)]
struct Answer {
    id_token: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

impl<'a> Provider<'a> {
    fn of(info: &'a LoginInfo) -> Result<Self, Failure> {
        let tls = TlsConfig::builder().provider(TlsProvider::Rustls);
        let tls = match &info.ca_pem {
            Some(pem) => {
                let ca = Certificate::from_pem(pem.as_bytes()).map_err(|error| {
                    let text = format!("the manager names no usable certificate authority for its provider: {error}");
                    Failure::new(Code::ProtocolViolation, text)
                })?;
                tls.root_certs(RootCerts::new_with_certs(&[ca]))
            }
            None => tls,
        };
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .timeout_global(Some(REQUEST_LIMIT))
            .http_status_as_error(false)
            .build();
        Ok(Self {
            info,
            agent: config.into(),
        })
    }

    /// Posts a form and returns the response, whatever its status.
    fn post<T: serde::de::DeserializeOwned>(&self, address: &str, form: &[(&str, &str)]) -> Result<T, Failure> {
        let response = self.agent.post(address).send_form(form.iter().copied());
        let read = response.and_then(|mut response| response.body_mut().read_json());
        read.map_err(|error| {
            let text = format!("{address} does not answer as it should: {error}; try again");
            Failure::new(Code::Unreachable, text)
        })
    }

    /// Sends a request to the token endpoint.
    fn exchange(&self, form: &[(&str, &str)]) -> Result<Answer, Failure> {
        self.post(&self.info.token_endpoint, form)
    }

    fn scope(&self) -> String {
        self.info.scopes.join(" ")
    }

    fn refused(&self, answer: &Answer) -> Failure {
        let why = answer.error_description.as_deref().or(answer.error.as_deref());
        let text = format!(
            "{} does not let you in: {:.300}; try again, or ask its operators",
            self.info.issuer,
            why.unwrap_or("it gave no ID token")
        );
        Failure::new(Code::Unauthorized, text)
    }
}

/// Shows instructions to the person while the command waits.
fn tell(text: &str) {
    eprintln!("{text}");
}
