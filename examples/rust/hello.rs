//! One function, one call.
//!
//!     cc -O3 -shared -fPIC -I bindings/c/include -o libsquare.so examples/functions/square.c
//!     cargo run --release -p dayfly-examples --bin hello ./libsquare.so

use dayfly_client::{ChannelOptions, Client, Form, LeaseOptions, WorkerIndex};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let library = std::env::args().nth(1).unwrap_or("./libsquare.so".into());
    let client = Client::connect(None)?; // finds a manager, or starts an embedded one
    let lease = client.lease(LeaseOptions::native(1))?; // one worker
    let code = lease.put_code(&std::fs::read(library)?)?;
    let mut channel = lease.channel(WorkerIndex(0), &ChannelOptions::default())?;
    let square = channel.load(
        code,
        &Form::Plain {
            symbol: "square".into(),
        },
    )?;

    let input: Vec<u8> = [1.0f64, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let reply = channel.call(square, &input)?;
    for (x, y) in input.chunks_exact(8).zip(reply.chunks_exact(8)) {
        let number = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().unwrap_or_default());
        println!("{} squared is {}", number(x), number(y));
    }
    Ok(())
}
