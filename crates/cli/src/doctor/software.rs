//! Software that Dayfly uses if it is there: Python, fabrics, images, batch systems, GPUs.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dayfly_fabric::libfabric::ffi::Library;
use dayfly_sandbox::tool::{self, Tool};

use super::{Finding, State};
use crate::interpreter;

/// Limit for an interpreter.
const LIMIT: Duration = Duration::from_secs(10);
/// Prints its version, then those of the packages; `-` for one that it lacks.
const PACKAGES: &str = "import sys\n\
    from importlib.metadata import PackageNotFoundError, version\n\
    print('%d.%d.%d' % sys.version_info[:3])\n\
    for name in 'dayfly', 'dayfly-frames':\n    \
        try: print(version(name))\n    \
        except PackageNotFoundError: print('-')";
/// Providers of libfabric for network cards, and the one for any network. The others are for tests.
const PROVIDERS: [&str; 5] = ["verbs", "cxi", "efa", "opx", "tcp"];
/// Commands that submit jobs, and the names of their batch systems.
const BATCH_SYSTEMS: [(&str, &str); 4] = [
    ("sbatch", "Slurm"),
    ("qsub", "PBS, Torque or Grid Engine"),
    ("bsub", "LSF"),
    ("condor_submit", "HTCondor"),
];
/// Tools that unpack or hold images.
const IMAGE_TOOLS: [&str; 5] = ["podman", "ch-run", "apptainer", "singularity", "unsquashfs"];
/// Device files of GPUs.
const GPUS: [(&str, &str); 2] = [("/dev/nvidiactl", "NVIDIA"), ("/dev/kfd", "AMD")];

pub fn check() -> Vec<Finding> {
    let mut findings = python();
    findings.extend([fabric(), images(), batch_systems(), gpus()]);
    findings
}

fn python() -> Vec<Finding> {
    const NAME: &str = "Python";
    const FRAMES: &str = "data frames";
    let python = match interpreter::own() {
        Ok(python) => python,
        Err(why) => {
            let remedy = "install Python 3.11 or later with the package dayfly, and name it in DAYFLY_PYTHON; C, C++ and Rust \
                          functions run without";
            return vec![Finding::new(NAME, State::Absent, why, remedy)];
        }
    };
    let shown = python.display();
    let packages = match output(&python, PACKAGES) {
        Ok(packages) => packages,
        Err(why) => {
            let remedy = "repair this Python, or name another one in DAYFLY_PYTHON";
            return vec![Finding::new(NAME, State::Absent, format!("{shown}: {why}"), remedy)];
        }
    };
    let own = env!("CARGO_PKG_VERSION");
    let mut lines = packages.lines();
    let mut next = || lines.next().unwrap_or("-");
    let (version, package, frames) = (next(), next(), next());
    let python = match package == own {
        true => Finding::works(NAME, format!("{shown}, version {version}, with dayfly {package}")),
        false => {
            let found = format!("{shown} has dayfly {package}, and this program is {own}");
            Finding::new(NAME, State::Limited, found, "install both from the same release")
        }
    };
    let frames = match frames {
        "-" => Finding::new(
            FRAMES,
            State::Absent,
            "this Python has no package dayfly-frames",
            "install the wheel of the same release, if you want `dayfly sql` and `dayfly.frames`",
        ),
        frames => Finding::works(FRAMES, format!("dayfly-frames {frames}")),
    };
    vec![python, frames]
}

fn output(python: &Path, program: &str) -> Result<String, String> {
    let never = AtomicBool::new(false);
    let tool = Tool {
        name: python.as_os_str(),
        limit: LIMIT,
        stop: &never,
    };
    tool.output(&["-c", program]).map_err(|error| error.to_string())
}

fn fabric() -> Finding {
    const NAME: &str = "fabrics";
    let library = match Library::get() {
        Ok(library) => library,
        Err(error) => {
            let remedy =
                "install libfabric 1.15 or later (Debian: libfabric1) for RDMA; shared memory and TCP need nothing";
            return Finding::new(NAME, State::Absent, error, remedy);
        }
    };
    let version = format!("libfabric {}.{}", library.version >> 16, library.version & 0xffff);
    let found: Vec<&str> = PROVIDERS
        .into_iter()
        .filter(|name| library.provider(name, None, None).is_ok())
        .collect();
    match found.iter().any(|name| *name != "tcp") {
        true => Finding::works(NAME, format!("{version} with {}", found.join(", "))),
        false => Finding::new(
            NAME,
            State::Absent,
            format!("{version} finds no RDMA card"),
            "nothing, unless there is one: then install its driver, and check it with `fi_info`",
        ),
    }
}

fn images() -> Finding {
    match present(&IMAGE_TOOLS)[..] {
        [] => Finding::new(
            "images",
            State::Absent,
            "no tool for images; a directory works as an image without one",
            "install podman, charliecloud or apptainer, or squashfs-tools for .sqfs files",
        ),
        ref tools => Finding::works("images", tools.join(", ")),
    }
}

fn present<'a>(programs: &[&'a str]) -> Vec<&'a str> {
    programs.iter().copied().filter(|name| tool::exists(name)).collect()
}

fn batch_systems() -> Finding {
    let systems: Vec<&str> = BATCH_SYSTEMS
        .into_iter()
        .filter_map(|(command, system)| tool::exists(command).then_some(system))
        .collect();
    match systems[..] {
        [] => Finding::new(
            "batch system",
            State::Absent,
            "no command that submits jobs",
            "nothing on a single machine; on a cluster, run an endpoint where jobs can be submitted",
        ),
        ref systems => Finding::works("batch system", systems.join(", ")),
    }
}

fn gpus() -> Finding {
    let found = GPUS
        .into_iter()
        .find(|(device, _)| Path::new(OsStr::new(device)).exists());
    match found {
        Some((_, maker)) => Finding::works("GPUs", maker),
        None => Finding::new(
            "GPUs",
            State::Absent,
            "no NVIDIA or AMD device",
            "nothing, unless there is one: then install its driver",
        ),
    }
}
