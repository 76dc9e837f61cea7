//! Many calls over all workers of a lease.
//!
//!     cc -O3 -shared -fPIC -I bindings/c/include -o libsquare.so examples/functions/square.c
//!     cargo run --release -p dayfly-examples --bin parallel ./libsquare.so

use dayfly_client::{CallOptions, Client, Form, LeaseOptions, Mode};

const CALLS: usize = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let library = std::env::args().nth(1).unwrap_or("./libsquare.so".into());
    let client = Client::connect(None)?;
    let warm = LeaseOptions {
        mode: Mode::Warm,
        ..LeaseOptions::native(2)
    }; // warm workers share cores, and sleep when idle
    let lease = client.lease(warm)?;
    let code = lease.put_code(&std::fs::read(library)?)?;
    let pool = lease.pool(Default::default())?; // a channel to each worker
    let square = pool.register(
        code,
        Form::Plain {
            symbol: "square".into(),
        },
    )?;

    let calls = (0..CALLS)
        .map(|x| pool.submit(square, &(x as f64).to_le_bytes()[..], CallOptions::default()))
        .collect::<Result<Vec<_>, _>>()?;
    let mut sum = 0.0;
    for call in calls {
        let output = pool.wait(call, None)?;
        sum += f64::from_le_bytes(output.as_slice().try_into()?);
    }
    println!(
        "the squares of 0 to {} add up to {sum}, on {} workers",
        CALLS - 1,
        lease.workers()
    );
    Ok(())
}
