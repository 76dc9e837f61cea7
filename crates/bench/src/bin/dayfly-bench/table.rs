//! `dayfly bench table`: cold, warm and hot over each transport, with a picture.

use dayfly_bench::busy::Watch;
use dayfly_bench::invoke;
use dayfly_bench::picture::{Picture, Series};
use dayfly_bench::subject::How;
use dayfly_bench::table::{Table, duration};
use dayfly_client::{Sandbox, Transport};
use dayfly_command::bench::{ColdArguments, Language, TableArguments};
use dayfly_command::values::Level;
use dayfly_protocol::error::{Code, Failure};
use serde_json::json;

use crate::cold::measure_cold;
use crate::failure;
use crate::manager::own_manager;

pub fn run(options: &TableArguments, json: bool) -> Result<(), Failure> {
    std::fs::create_dir_all(&options.out).map_err(|error| {
        Failure::new(
            Code::StoreFailed,
            format!("{} cannot be made: {error}", options.out.display()),
        )
    })?;
    let quiet = Watch::look(std::time::Duration::from_millis(300), &[]);
    quiet
        .judge(options.force)
        .map_err(|busy| failure(&dayfly_bench::Error::from(busy)))?;
    let mut rows = Table::new(
        "An invocation of 64 bytes in and out",
        &["", "p50", "p99", "p99.9", "baseline p50", "difference"],
    );
    let mut all = Vec::new();
    let mut series: Vec<Series> = Vec::new();
    for language in [Language::C, Language::Python] {
        for pool in [false, true] {
            let cold = ColdArguments {
                language,
                sandbox: Level::Process,
                image: None,
                parallel: 0,
                calls: 15,
                pool,
                force: options.force,
                python: options.python.clone(),
            };
            let name = format!(
                "cold, {}{}",
                if language == Language::C { "C" } else { "Python" },
                if pool { ", warm pool" } else { "" }
            );
            match measure_cold(&cold) {
                Ok(report) => {
                    let ns = |ms: f64| duration(ms * 1e6);
                    rows.row([
                        name,
                        ns(report.total.p50_ms),
                        ns(report.total.p99_ms),
                        String::new(),
                        duration(report.baseline.latency.p50_ns),
                        ns(report.overhead_p50_ms),
                    ]);
                    all.push(json!(report));
                }
                Err(error) if language == Language::Python => {
                    rows.row([name, format!("left out: {}", error.code.name())])
                }
                Err(error) => return Err(error),
            }
        }
    }
    let (client, mine) = own_manager(1)?;
    for transport in [Transport::Shm, Transport::Tcp, Transport::Tls] {
        for hot in [false, true] {
            let how = How {
                transport,
                hot,
                size: 64,
                plain: false,
                sandbox: Sandbox::Process,
            };
            let options = invoke::Options {
                how,
                depth: 1,
                workers: 1,
                calls: 0,
                force: options.force,
            };
            let (report, pair) = invoke::run(&client, &mine, &options).map_err(|error| failure(&error))?;
            let name = format!("{}, {transport}, C", if hot { "hot" } else { "warm" });
            rows.row([
                name,
                duration(report.invoke.p50_ns),
                duration(report.invoke.p99_ns),
                duration(report.invoke.p999_ns),
                duration(report.baseline.latency.p50_ns),
                duration(report.difference.overhead_p50_ns),
            ]);
            series.extend(pair);
            all.push(json!(report));
        }
    }
    let picture = Picture {
        title: "Latency of an invocation, 64 bytes in and out".into(),
        subtitle: "each beside the raw limit of this machine in the same run".into(),
        series,
    };
    let (png, svg) = picture
        .write(&options.out, "latency")
        .map_err(|error| failure(&error))?;
    let all = json!({ "rows": all, "png": png, "svg": svg });
    let written = options.out.join("bench.json");
    std::fs::write(&written, format!("{all:#}\n")).map_err(|error| {
        Failure::new(
            Code::StoreFailed,
            format!("{} cannot be written: {error}", written.display()),
        )
    })?;
    if json {
        println!("{all}");
    } else {
        println!("{rows}\n  picture: {} and {}", png.display(), svg.display());
    }
    Ok(())
}
