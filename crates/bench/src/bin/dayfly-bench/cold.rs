//! `dayfly bench cold`: from the request for a lease to the first result.

use dayfly_bench::cold;
use dayfly_bench::report::ColdReport;
use dayfly_client::Runtime;
use dayfly_command::bench::{ColdArguments, Language};
use dayfly_protocol::error::Failure;

use crate::failure;
use crate::manager::own_manager;
use crate::python::describe_python;

/// Executors parked for `bench cold --pool`.
const C_POOL: usize = 8;
const PYTHON_POOL: usize = 4;

pub fn measure_cold(options: &ColdArguments) -> Result<ColdReport, Failure> {
    let (runtime, function) = match options.language {
        Language::C => (Runtime::Native, None),
        Language::Python => describe_python(&options.python).map(|(runtime, function)| (runtime, Some(function)))?,
    };
    let pool = match (options.pool, options.language) {
        (false, _) => 0,
        (true, Language::C) => C_POOL,
        (true, Language::Python) => PYTHON_POOL,
    };
    let (client, mine) = own_manager(pool)?;
    let options = cold::Options {
        runtime,
        function,
        calls: options.calls,
        pool,
        parallel: options.parallel,
        sandbox: options.sandbox.into(),
        image: options.image.clone(),
        force: options.force,
    };
    cold::run(&client, &mine, &options).map_err(|error| failure(&error))
}
