//! Option prices over shared memory without a copy: the worker reads and writes the buffers of this program.
//!
//!     cc -O3 -shared -fPIC -I bindings/c/include -o libblackscholes.so examples/functions/blackscholes.c -lm
//!     cargo run --release -p dayfly-examples --bin blackscholes ./libblackscholes.so

use dayfly_client::{ChannelOptions, Client, Form, LeaseOptions, WorkerIndex};

const OPTIONS: usize = 100_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let library = std::env::args().nth(1).unwrap_or("./libblackscholes.so".into());
    let client = Client::connect(None)?;
    let lease = client.lease(LeaseOptions::native(1))?;
    let code = lease.put_code(&std::fs::read(library)?)?;
    let mut channel = lease.channel(WorkerIndex(0), &ChannelOptions::default())?;
    let symbol = "blackscholes".into();
    let price = channel.load(code, &Form::Checked { symbol })?;

    let mut options = channel.allocate(OPTIONS * 40)?;
    let mut prices = channel.allocate(OPTIONS * 8)?;
    for (i, option) in options.as_mut_slice().chunks_exact_mut(40).enumerate() {
        // Spot, strike, years to expiry, interest rate, volatility.
        let values = [100.0, 50.0 + i as f64 * 100.0 / OPTIONS as f64, 1.0, 0.05, 0.2];
        for (place, value) in option.chunks_exact_mut(8).zip(values) {
            place.copy_from_slice(&f64::to_le_bytes(value));
        }
    }
    let bytes = channel.call_into(price, &options, OPTIONS * 40, &mut prices, 0)?;
    let middle = &prices.as_slice()[OPTIONS / 2 * 8..][..8];
    let at_the_money = f64::from_le_bytes(middle.try_into()?);
    println!("{} prices; at the money {at_the_money:.4}", bytes / 8);
    Ok(())
}
