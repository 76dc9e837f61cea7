//! `dayfly rendezvous`: a meeting point for ranks, without a manager.

use std::net::SocketAddr;

use clap::Args;
use dayfly_command::Global;
use dayfly_protocol::error::Failure;
use dayfly_rendezvous::server::{ServeOptions, serve};
use serde_json::json;

use crate::output;

/// Start a rendezvous for the ranks of groups, without a manager.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dayfly rendezvous --listen 0.0.0.0:7075

A manager includes a rendezvous. Use this command for processes that Dayfly did not start: from mpirun, srun or a shell. Each
process finds its group by the environment variable DAYFLY_GROUP, such as
  {\"rendezvous\": \"head.example.org:7075\", \"key\": \"...\", \"name\": \"mine\", \"secret\": \"...\", \"size\": 4}
where the secret is shared by all ranks, at least 16 random bytes in hexadecimal (openssl rand -hex 32), and the key is printed
by this command. Ranks that cannot connect to each other are relayed, with end-to-end encryption.")]
pub struct Arguments {
    /// Address to listen on; port 0 for any free port; may be repeated
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7075")]
    listen: Vec<SocketAddr>,
    /// Do not relay between ranks that cannot connect to each other
    #[arg(long)]
    no_relay: bool,
}

pub fn run(arguments: &Arguments, global: &Global) -> Result<(), Failure> {
    let options = ServeOptions {
        listen: arguments.listen.clone(),
        relay: !arguments.no_relay,
        ..ServeOptions::default()
    };
    serve(options, |key, addresses| {
        let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        output::announce(&if global.json {
            json!({ "ready": true, "key": key, "addresses": addresses, "pid": std::process::id() }).to_string()
        } else {
            format!(
                "Ranks may meet.\n\n  address  {}\n  key      {key}\n\nCtrl-C ends it.",
                addresses.join(", ")
            )
        });
    })
}
