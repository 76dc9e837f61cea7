//! Prints what this machine can do, with no Dayfly code on the way. With a directory as its argument it also draws the
//! distributions of the round trips there, as `limits.png` and `limits.svg`.

use dayfly_bench::baseline::{
    Baseline, CacheLine, Copy, CopyInPeer, Cores, Futex, Ring, Spawn, TcpEcho, TcpSink, TlsEcho, pin,
};
use dayfly_bench::busy::Watch;
use dayfly_bench::machine::Machine;
use dayfly_bench::picture::{Picture, Series};
use dayfly_bench::table::{Table, bandwidth, duration, rate};
use dayfly_bench::{Error, Plan, measure};

const MIB: usize = 1 << 20;

fn main() -> Result<(), Error> {
    pin(Cores::pick()?.client)?;
    let watch = Watch::start(&[]);

    let mut latencies = Table::new("Round trips", &["baseline", "min", "p50", "p99", "p99.9", "what"]);
    let mut bandwidths = Table::new(
        "Bandwidths, counting bytes read and bytes written",
        &["baseline", "p50", "what"],
    );
    let mut series = Vec::new();
    let mut row = |mut baseline: Box<dyn Baseline>, calls: usize| -> Result<(), Error> {
        let samples = measure(&mut *baseline, Plan::of_calls(calls))?;
        let s = samples.summary();
        series.push(Series::invocation(baseline.name(), baseline.name(), &samples));
        let about = baseline.about();
        let cells = [
            baseline.name().into(),
            duration(s.min_ns),
            duration(s.p50_ns),
            duration(s.p99_ns),
        ];
        latencies.row(cells.into_iter().chain([duration(s.p999_ns), about]));
        Ok(())
    };
    row(Box::new(CacheLine::bare()?), 1_000_000)?;
    row(Box::new(CacheLine::with_payload(48)?), 1_000_000)?;
    row(Box::new(CacheLine::with_payload(64)?), 1_000_000)?;
    row(Box::new(Ring::new(64, 16)?), 1_000_000)?;
    row(Box::new(Futex::new(64)?), 20_000)?;
    row(Box::new(TcpEcho::spinning(64)?), 50_000)?;
    row(Box::new(TcpEcho::blocking(64)?), 20_000)?;
    row(Box::new(TlsEcho::spinning(64)?), 50_000)?;
    row(Box::new(TlsEcho::blocking(64)?), 20_000)?;
    row(Box::new(Spawn::new()?), 400)?;

    let mut row = |mut baseline: Box<dyn Baseline>, calls: usize| -> Result<(), Error> {
        let s = measure(&mut *baseline, Plan::of_calls(calls))?.summary();
        bandwidths.row([
            baseline.name().into(),
            bandwidth(Copy::bandwidth(MIB, s.p50_ns)),
            baseline.about(),
        ]);
        Ok(())
    };
    row(Box::new(Copy::new(MIB)), 4000)?;
    row(Box::new(CopyInPeer::new(MIB)?), 4000)?;
    row(Box::new(TcpEcho::spinning(MIB)?), 1000)?;
    row(Box::new(TcpEcho::blocking(MIB)?), 1000)?;
    let stream = TcpSink::new(MIB)?.rate(4000)?;
    bandwidths.row([
        "tcp_stream".into(),
        bandwidth(stream),
        "a stream in one direction, counted once".into(),
    ]);

    let mut rates = Table::new("Rates", &["baseline", "per second", "what"]);
    for depth in [1, 4, 16, 64] {
        let mut ring = Ring::new(64, depth)?;
        rates.row(["c_ring".into(), rate(ring.rate(5_000_000)?), ring.about()]);
    }
    let mut amortised = Table::new("With no clock read per call", &["baseline", "mean", "what"]);
    for size in [0, 48, 64] {
        let mut line = CacheLine::with_payload(size)?;
        amortised.row([
            line.name().into(),
            duration(line.amortised_ns(2_000_000)?),
            line.about(),
        ]);
    }
    for table in [latencies, amortised, bandwidths, rates] {
        println!("{table}");
    }
    let noise = watch.finish().judge(true)?;
    let warning = noise.warning.unwrap_or_else(|| "quiet enough".into());
    if let Some(directory) = std::env::args_os().nth(1) {
        let machine = Machine::this();
        let subtitle = format!("{}, {} cores, Linux {}", machine.cpu, machine.cores, machine.kernel);
        let picture = Picture {
            title: "What this machine can do".into(),
            subtitle,
            series,
        };
        let (png, svg) = picture.write(directory.as_ref(), "limits")?;
        println!("Wrote {} and {}.", png.display(), svg.display());
    }
    println!("Other processes used {:.2} cores: {warning}.", noise.foreign_cores);
    Ok(())
}
