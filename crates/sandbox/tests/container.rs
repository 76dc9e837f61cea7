//! Real processes in images: what they see of the image and of the host, and what a hostile image can do.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Ended, Workspace};
use dayfly_sandbox::isolation::{Base, BindMount, CODE_DIR};
use dayfly_sandbox::{Child, Isolation, Program, SandboxError};

/// A root file system with a shell and some programs of the host, and a unique file.
fn image(place: &Workspace) -> PathBuf {
    let root = place.dir.path().canonicalize().unwrap().join("image");
    for name in ["usr/bin", "etc", "opt/inside", "tmp", "proc"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    symlink("usr/bin", root.join("bin")).unwrap();
    fs::write(root.join("etc/only-here"), "only here\n").unwrap();
    fs::write(root.join("opt/inside/file"), "of the image\n").unwrap();
    for name in ["sh", "cat", "ls", "id", "env"] {
        let program = Path::new("/bin").join(name).canonicalize().unwrap();
        fs::copy(&program, root.join("usr/bin").join(name)).unwrap();
        let listed = Command::new("ldd").arg(&program).output().unwrap();
        for library in String::from_utf8(listed.stdout).unwrap().split_whitespace() {
            if library.starts_with('/') {
                let to = root.join(library.trim_start_matches('/'));
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                fs::copy(library, to).unwrap();
            }
        }
    }
    root
}

fn isolation(place: &Workspace, image: &Path) -> Isolation {
    Isolation {
        base: Base::Image(image.into()),
        ..place.isolation()
    }
}

fn shown(path: &str, from: &Path) -> Vec<BindMount> {
    vec![BindMount {
        path: path.into(),
        from: from.into(),
        writable: false,
    }]
}

fn start(
    place: &Workspace,
    isolation: Isolation,
    program: &str,
    otherwise: Option<&str>,
) -> Result<Child, SandboxError> {
    place.spawner.spawn(Program {
        program: program.into(),
        otherwise: otherwise.map(Into::into),
        arguments: Vec::new(),
        environment: vec![
            ("PATH".into(), Some("/opt/none:/usr/bin".into())),
            ("OF_IMAGE".into(), Some("yes".into())),
        ],
        isolation: Some(isolation),
    })
}

#[test]
fn program_in_an_image_sees_no_host_file() {
    let place = Workspace::new();
    let image = image(&place);
    let script = format!("echo /*; cat /etc/only-here {CODE_DIR}/abc; echo; ls /etc; id -u; echo /proc/[0-9]*");
    let ended = place.run_in(isolation(&place, &image), &script);
    let lines = ended.lines();
    let mut seen: Vec<&str> = lines[0].split(' ').collect();
    seen.retain(|name| !name.starts_with("/lib"));
    assert_eq!(
        seen,
        [
            "/bin", "/dayfly", "/dev", "/etc", "/opt", "/proc", "/sys", "/tmp", "/usr"
        ]
    );
    assert_eq!(lines[1..4], ["only here", "code", "only-here"]);
    assert_ne!(lines[4], "0");
    assert!(lines[5].split(' ').count() < 4, "{}", lines[5]);
}

#[test]
fn image_is_not_changed_by_its_programs() {
    let place = Workspace::new();
    let image = image(&place);
    let script = "for at in / /etc /opt/inside /usr/bin /dayfly/code; do echo x 2>&- > $at/new && echo $at; done; echo y > /tmp/new; cat /tmp/new";
    assert_eq!(place.run_in(isolation(&place, &image), script).lines(), ["y"]);
    assert!(!image.join("tmp/new").exists() && !image.join("etc/new").exists());
}

#[test]
fn program_is_found_on_the_image_path() {
    let place = Workspace::new();
    let image = image(&place);
    let run = |program, otherwise| Ended::of(start(&place, isolation(&place, &image), program, otherwise).unwrap());
    let environment = run("env", None);
    assert!(environment.lines().contains(&"OF_IMAGE=yes"));
    let paths = environment.lines().into_iter().filter(|line| line.starts_with("PATH="));
    assert_eq!(paths.collect::<Vec<_>>(), ["PATH=/opt/none:/usr/bin"]);
    assert!(run("python9.9", Some("env")).lines().contains(&"HOME=/tmp"));
}

#[test]
fn image_without_program_or_libc_is_named() {
    let place = Workspace::new();
    let image = image(&place);
    let fail = |program| start(&place, isolation(&place, &image), program, None).unwrap_err();
    for missing in ["python9.9", "/opt/none/at/all"] {
        let error = fail(missing);
        assert!(matches!(error, SandboxError::NotInImage { .. }), "{error}");
        assert!(error.to_string().contains(missing), "{error}");
    }
    for name in ["lib64", "lib"] {
        let _ = fs::remove_dir_all(image.join(name));
    }
    let error = fail("env");
    assert!(
        matches!(error, SandboxError::NotInImage { .. }) && error.to_string().contains("glibc"),
        "{error}"
    );
    fs::write(image.join("usr/bin/nonsense"), "\0\0").unwrap();
    fs::set_permissions(
        image.join("usr/bin/nonsense"),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let error = fail("nonsense");
    assert!(error.to_string().contains("running its program"), "{error}");
    let gone = isolation(&place, &place.dir.path().join("gone"));
    let error = start(&place, gone, "env", None).unwrap_err();
    assert!(matches!(error, SandboxError::Image(..)), "{error}");
}

#[test]
fn mounts_stand_beside_or_replace_image_files() {
    let place = Workspace::new();
    let image = image(&place);
    let from = place.dir.path().canonicalize().unwrap().join("data");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("file"), "of the host\n").unwrap();
    let run = |at: &str, script: &str| {
        let isolation = Isolation {
            shown: shown(at, &from),
            ..isolation(&place, &image)
        };
        place.run_in(isolation, script).output
    };
    let both = "cat /opt/inside/file /opt/beside/deep/file";
    assert_eq!(run("/opt/beside/deep", both), "of the image\nof the host\n");
    assert_eq!(run("/opt/inside", "cat /opt/inside/file"), "of the host\n");
    assert_eq!(
        run("/opt/inside/deep", "cat /opt/inside/file /opt/inside/deep/file"),
        "of the image\nof the host\n"
    );
    assert_eq!(run("/data", "cat /data/file; echo x 2>&- > /data/new"), "of the host\n");
    assert!(!image.join("opt/beside").exists() && !image.join("opt/inside/deep").exists());
}

#[test]
fn image_links_never_reach_the_host() {
    let place = Workspace::new();
    let image = image(&place);
    let outside = place.dir.path().canonicalize().unwrap().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "mine").unwrap();
    // Places where the node would make or mount something if it followed links.
    for name in ["dayfly", "dev", "sys", "evil", "var"] {
        symlink(&outside, image.join(name)).unwrap();
    }
    fs::remove_dir(image.join("tmp")).unwrap();
    symlink(&outside, image.join("tmp")).unwrap();
    symlink(&outside, image.join("opt/evil")).unwrap();
    let ended = place.run_in(
        isolation(&place, &image),
        "cat /evil/secret /opt/evil/secret /var/secret 2>&-; echo x > /tmp/new; ls /tmp /dayfly",
    );
    assert_eq!(ended.output, "/dayfly:\ncode\n\n/tmp:\nnew\n", "{}", ended.errors);
    for at in ["/evil/inner", "/opt/evil/inner", "/etc/only-here/inner"] {
        let isolation = Isolation {
            shown: shown(at, &outside),
            ..isolation(&place, &image)
        };
        let error = start(&place, isolation, "env", None).unwrap_err();
        assert!(
            matches!(&error, SandboxError::NotShown(path, _) if path == Path::new(at)),
            "{error}"
        );
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn many_entries_are_refused_only_if_mounted_singly() {
    let place = Workspace::new();
    let image = image(&place);
    for number in 0..3000 {
        fs::write(image.join(format!("opt/{number}")), "").unwrap();
    }
    assert_eq!(place.run_in(isolation(&place, &image), "echo fine").lines(), ["fine"]);
    let isolation = Isolation {
        shown: shown("/opt/data", place.dir.path()),
        ..isolation(&place, &image)
    };
    let error = start(&place, isolation, "env", None).unwrap_err();
    assert!(error.to_string().contains("too many entries"), "{error}");
}
