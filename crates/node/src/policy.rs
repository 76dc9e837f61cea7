//! What this node's owner permits leases: their isolation, the host's paths that they see, and their images.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use dayfly_protocol::api::{LeaseRequest, Runtime, Sandbox};
use dayfly_protocol::error::{Code, Failure};
use dayfly_sandbox::isolation::BindMount;

use crate::Options;
use crate::environments::BuiltEnvironment;
use crate::executors::{ExecutorKind, HostAccess, Language};
use crate::images::Image;
use crate::package::PYTHON_DIR;
use crate::runtimes;
use crate::trust::Permissions;

/// Path of the executor of shared libraries inside an image.
pub const EXECUTOR: &str = "/dayfly/bin/dayfly-executor";

/// An image, and Dayfly's own files in it.
#[derive(Debug, Clone)]
pub struct Container {
    /// Its image.
    pub image: Arc<Image>,
    /// Programs or modules.
    pub own: Vec<BindMount>,
}

/// The kind of executor for a request at this level. `container` and `built` are the container and the environment that
/// it requests, if any.
pub fn kind(
    request: &LeaseRequest,
    sandbox: Sandbox,
    permissions: Permissions<'_>,
    options: &Options,
    container: Option<Container>,
    built: Option<Arc<BuiltEnvironment>>,
) -> Result<ExecutorKind, Failure> {
    if sandbox != Sandbox::Container && request.image.is_some() {
        return Err(Failure::new(
            Code::InvalidRequest,
            format!(
                "an image is for containers, and the lease asks for sandbox `{sandbox}`; ask for sandbox `container`"
            ),
        ));
    }
    if sandbox != Sandbox::Process && request.gpus_per_worker > 0 {
        return Err(Failure::new(
            Code::InvalidRequest,
            format!(
                "isolated workers see no GPUs; ask for sandbox `process` instead of `{sandbox}`, where the site has it"
            ),
        ));
    }
    if sandbox == Sandbox::Process {
        return match request.files.is_empty() && !request.network {
            true => Ok(ExecutorKind {
                language: language(&request.runtime, &options.pythons, |_| true, built)?,
                host_access: None,
            }),
            false => Err(Failure::new(
                Code::InvalidRequest,
                "files and network are for isolated leases; in sandbox `process` workers have all that the node's user has",
            )),
        };
    }
    let readable = |path: &Path| granted(path, permissions, false).is_ok();
    let mut language = match &container {
        // A function imports from the image.
        Some(_) => language_in_image(request),
        None => language(&request.runtime, &options.pythons, readable, built)?,
    };
    if container.is_none()
        && let (Language::Python { path, .. }, Runtime::Python { path: wanted, .. }) = (&mut language, &request.runtime)
    {
        // The client's module path, as far as it may be seen here.
        *path = wanted
            .iter()
            .filter(|path| readable(Path::new(path)))
            .cloned()
            .collect();
    }
    if request.network && !permissions.shares_network() {
        return Err(refused(
            "the lease asks for the host's network, which this node shares with no isolated worker",
        ));
    }
    let mut shown = Vec::new();
    for file in &request.files {
        let what = if file.writable { "writable" } else { "readable" };
        let from = granted(Path::new(&file.path), permissions, file.writable)
            .map_err(|why| refused(&format!("the lease asks for `{}` to be {what}: {why}", file.path)))?;
        shown.push(BindMount {
            path: file.path.clone().into(),
            from,
            writable: file.writable,
        });
    }
    let (image, own) = match container {
        Some(Container { image, own }) => (Some(image), own),
        None => (None, interpreter_paths(&language, options)),
    };
    shown.extend(own);
    Ok(ExecutorKind {
        language,
        host_access: Some(HostAccess {
            shown,
            network: request.network,
            image,
        }),
    })
}

/// The language runtime of a lease without an image: that of its environment, if it has one.
fn language(
    runtime: &Runtime,
    pythons: &[PathBuf],
    sees: impl Fn(&Path) -> bool,
    built: Option<Arc<BuiltEnvironment>>,
) -> Result<Language, Failure> {
    let language = runtimes::language(runtime, pythons, sees)?;
    Ok(match (language, built) {
        (Language::Python { path, .. }, Some(built)) => Language::Python {
            executable: built.python.clone(),
            path,
            environment: Some(built),
        },
        (language, _) => language,
    })
}

/// The language runtime in an image: an interpreter of the client's version, or any, which then reports its version. It
/// sees the part of the client's module path that the lease shows.
fn language_in_image(request: &LeaseRequest) -> Language {
    match &request.runtime {
        Runtime::Native => Language::Native,
        Runtime::Python { version, path, .. } => {
            let is_shown = |path: &&String| request.files.iter().any(|file| Path::new(path).starts_with(&file.path));
            let own = std::iter::once(PYTHON_DIR.to_string());
            let minor = runtimes::minor(version);
            let is_plain = !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            Language::Python {
                executable: format!("python{}", if is_plain { minor } else { "3" }).into(),
                path: own.chain(path.iter().filter(is_shown).cloned()).collect(),
                environment: None,
            }
        }
    }
}

/// The kind of parked executors for leases without special requests; `None` for containers, whose image is unknown in
/// advance.
pub fn default_kind(language: Language, options: &Options) -> Option<ExecutorKind> {
    let first = options.sandboxes.first()?;
    (*first != Sandbox::Container).then(|| ExecutorKind {
        host_access: (*first == Sandbox::Isolated).then(|| HostAccess {
            shown: interpreter_paths(&language, options),
            network: false,
            image: None,
        }),
        language,
    })
}

fn refused(text: &str) -> Failure {
    Failure::new(
        Code::InvalidRequest,
        format!("{text}; ask for less, or the node's operator to allow it (see `dayfly node --help`)"),
    )
}

/// The real path of `path`, if it is below one that the node's owner named.
fn granted(path: &Path, permissions: Permissions<'_>, writable: bool) -> Result<PathBuf, String> {
    let is_plain = path.is_absolute() && path.components().all(|part| !matches!(part, Component::ParentDir));
    if !is_plain {
        return Err("a host path is absolute and has no `..`".into());
    }
    let real = path.canonicalize().map_err(|error| error.to_string())?;
    match permissions.shows(&real, writable) {
        true => Ok(real),
        false => Err("this node does not show it".into()),
    }
}

/// Directories that an interpreter needs. The node's owner named the interpreter, or permits its reading.
fn interpreter_paths(language: &Language, options: &Options) -> Vec<BindMount> {
    let Language::Python {
        executable,
        path,
        environment,
    } = language
    else {
        return Vec::new();
    };
    let prefix = |executable: &Path| executable.parent().and_then(Path::parent).map(Path::to_path_buf);
    let real = executable.canonicalize().ok();
    let prefixes = [prefix(executable), real.as_deref().and_then(prefix)];
    let mut needed: Vec<PathBuf> = prefixes.into_iter().flatten().collect();
    needed.extend(path.iter().map(PathBuf::from));
    // An interpreter directly in /bin has the whole machine as its prefix; /usr is shown anyway.
    needed.retain(|path| path.parent().is_some() && !path.starts_with("/usr"));
    let private = private_directories(options);
    let shown = needed.into_iter().filter_map(|path| {
        let from = path.canonicalize().ok()?;
        // An interpreter in the `bin` of a home directory has all of that directory as its prefix.
        if private.iter().any(|private| private.starts_with(&from)) {
            return None;
        }
        Some(BindMount {
            from,
            path,
            writable: false,
        })
    });
    let own = environment.iter().flat_map(|built| built.own.iter().cloned());
    shown.chain(own).collect()
}

/// The node's state with its keys, and the home of its user. An interpreter's prefix does not expose them to a sandbox.
fn private_directories(options: &Options) -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let all = [Some(options.state_dir.clone()), home].into_iter().flatten();
    all.filter_map(|path| path.canonicalize().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leases::Origin;
    use dayfly_protocol::api::{HostPath, Mode};
    use dayfly_protocol::ids::{PublicKey, TenantId};

    fn permissions(options: &Options) -> Permissions<'_> {
        Permissions::of(options, TenantId([0; 16]), &Origin::Node)
    }

    fn level(request: &LeaseRequest, options: &Options) -> Result<Sandbox, Failure> {
        permissions(options).level(request, None)
    }

    fn kind(
        request: &LeaseRequest,
        options: &Options,
        container: Option<Container>,
        built: Option<Arc<BuiltEnvironment>>,
    ) -> Result<ExecutorKind, Failure> {
        super::kind(
            request,
            level(request, options)?,
            permissions(options),
            options,
            container,
            built,
        )
    }

    fn request(sandbox: Option<Sandbox>) -> LeaseRequest {
        LeaseRequest {
            sandbox,
            ..LeaseRequest::native(1, Mode::Warm, 1000, PublicKey([0; 32]))
        }
    }

    fn options(sandboxes: &[Sandbox]) -> Options {
        let mut options = Options::new("/nowhere");
        options.sandboxes = sandboxes.to_vec();
        options
    }

    fn file(path: &Path, writable: bool) -> HostPath {
        HostPath {
            path: path.display().to_string(),
            writable,
        }
    }

    #[test]
    fn isolation_level_is_the_requested_or_first_permitted() {
        let isolated_first = options(&[Sandbox::Isolated, Sandbox::Process]);
        assert!(
            kind(&request(None), &isolated_first, None, None)
                .unwrap()
                .host_access
                .is_some()
        );
        let process = request(Some(Sandbox::Process));
        assert!(
            kind(&process, &isolated_first, None, None)
                .unwrap()
                .host_access
                .is_none()
        );
        let failure = kind(&process, &options(&[Sandbox::Isolated]), None, None).unwrap_err();
        assert!(failure.message.contains("`process`") && failure.message.contains("`isolated`"));
    }

    #[test]
    fn files_outside_permitted_directories_are_refused_despite_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (open, closed) = (root.join("open"), root.join("closed"));
        std::fs::create_dir(&open).unwrap();
        std::fs::create_dir(&closed).unwrap();
        std::os::unix::fs::symlink(&closed, open.join("link")).unwrap();
        let mut options = options(&[Sandbox::Isolated]);
        options.readable = vec![open.clone()];
        let ask = |files| LeaseRequest { files, ..request(None) };
        let shown = kind(&ask(vec![file(&open, false)]), &options, None, None)
            .unwrap()
            .host_access
            .unwrap()
            .shown;
        assert_eq!(shown[0].path, open);
        for refused in [
            file(&closed, false),
            file(&open.join("link"), false),
            file(&open.join("../closed"), false),
            file(&open, true),
            file(Path::new("open"), false),
        ] {
            let failure = kind(&ask(vec![refused.clone()]), &options, None, None).unwrap_err();
            assert!(failure.message.contains(&refused.path), "{failure}");
        }
    }

    #[test]
    fn interpreter_prefix_with_node_state_is_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let language = Language::Python {
            executable: root.join("bin/python3"),
            path: Vec::new(),
            environment: None,
        };
        let mut options = options(&[Sandbox::Isolated]);
        assert_eq!(interpreter_paths(&language, &options)[0].from, root);
        options.state_dir = root.join("state");
        std::fs::create_dir(&options.state_dir).unwrap();
        assert!(interpreter_paths(&language, &options).is_empty());
    }

    #[test]
    fn host_network_is_shared_only_if_permitted() {
        let asking = LeaseRequest {
            network: true,
            ..request(None)
        };
        let mut options = options(&[Sandbox::Isolated]);
        assert!(
            kind(&asking, &options, None, None)
                .unwrap_err()
                .message
                .contains("network")
        );
        options.share_network = true;
        assert!(
            kind(&asking, &options, None, None)
                .unwrap()
                .host_access
                .unwrap()
                .network
        );
    }

    #[test]
    fn image_is_accepted_only_for_containers() {
        let container = || {
            Some(Container {
                image: Arc::new(Image {
                    root: "/images/tool".into(),
                    described: "tool@sha256:00".into(),
                    environment: Vec::new(),
                }),
                own: Vec::new(),
            })
        };
        let of_image = |sandbox| LeaseRequest {
            image: Some("tool".into()),
            ..request(sandbox)
        };
        let all = options(&Sandbox::ALL);
        assert_eq!(level(&of_image(None), &all).unwrap(), Sandbox::Container);
        let kind = |request: &LeaseRequest, container| kind(request, &all, container, None);
        let host_access = kind(&of_image(None), container()).unwrap().host_access.unwrap();
        assert_eq!(host_access.image.unwrap().described, "tool@sha256:00");
        for other in [Sandbox::Process, Sandbox::Isolated] {
            let failure = kind(&of_image(Some(other)), None).unwrap_err();
            assert!(
                failure.message.contains(other.name()) && failure.message.contains("container"),
                "{failure}"
            );
        }
        let failure = level(&of_image(None), &options(&[Sandbox::Isolated])).unwrap_err();
        assert!(failure.message.contains("`container`") && failure.message.contains("`isolated`"));
    }

    #[test]
    fn container_uses_its_own_python_and_shown_paths() {
        let python = |version: &str, files| LeaseRequest {
            runtime: Runtime::Python {
                version: version.into(),
                cloudpickle: "3.1.0".into(),
                executable: Some("/usr/bin/python3".into()),
                path: vec!["/data/project/src".into(), "/usr/lib/python3".into()],
                environment: None,
                code: None,
            },
            files,
            ..request(None)
        };
        let of = |executable: &str, path: &[&str]| Language::Python {
            executable: executable.into(),
            path: path.iter().map(ToString::to_string).collect(),
            environment: None,
        };
        assert_eq!(
            language_in_image(&python("3.12.4", Vec::new())),
            of("python3.12", &[PYTHON_DIR])
        );
        let shown = vec![file(Path::new("/data/project"), false)];
        assert_eq!(
            language_in_image(&python("3.12.4", shown)),
            of("python3.12", &[PYTHON_DIR, "/data/project/src"])
        );
        for hostile in ["../../bin/sh", "3/x.1", "", "3.1\0"] {
            let Language::Python { executable, .. } = language_in_image(&python(hostile, Vec::new())) else {
                panic!("a Python was due");
            };
            assert!(executable.components().count() == 1, "{}", executable.display());
        }
    }
}
