//! Images in the storage of Podman.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::variables::{entry_point, variable};
use super::{Form, ImageError, ImageSource, LONG_LIMIT, Limits, SHORT_LIMIT, unpack as files};
use crate::tool::{self, Tool, ToolError};

/// Label of the containers that are created to export an image's files. They are never started.
const LABEL: &str = "dayfly.node";

/// Looks an image up by name.
pub(super) fn find(name: &str) -> Result<ImageSource, ImageError> {
    let never = AtomicBool::new(false);
    let said = podman(SHORT_LIMIT, &never).output(&["image", "inspect", "--", name]);
    let said = said.map_err(|error| match error {
        ToolError::Failed { why, .. } => ImageError::NotThere {
            name: name.into(),
            why: format!("Podman reports: {why}"),
        },
        other => other.into(),
    })?;
    let strange = || ToolError::Failed {
        tool: "podman image inspect".into(),
        why: "its description of the image has an unknown format; check that Podman is a current release".into(),
    };
    let all: serde_json::Value = serde_json::from_str(&said).map_err(|_| strange())?;
    let image = &all[0];
    let text = |value: &serde_json::Value| value.as_str().map(str::to_string);
    // The id is passed to Podman again, and becomes part of a path.
    let is_hash = |id: &String| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = text(&image["Id"]).filter(is_hash).ok_or_else(strange)?;
    let digest = text(&image["Digest"]).unwrap_or_else(|| format!("sha256:{id}"));
    let variables = image["Config"]["Env"].as_array().map(Vec::as_slice).unwrap_or_default();
    let variables = variables.iter().filter_map(|one| variable(one.as_str()?));
    let environment = variables.chain(entry_point(&image["Config"])).collect();
    Ok(ImageSource {
        // Copies of an earlier release have no entry point.
        mark: format!("podman {id} 2"),
        name: name.into(),
        form: Form::Podman {
            digest,
            bytes: image["Size"].as_u64().unwrap_or(0),
            environment,
            id,
        },
    })
}

fn podman(limit: Duration, stop: &AtomicBool) -> Tool<'_> {
    let name = OsStr::new("podman");
    Tool { name, limit, stop }
}

/// Exports the files of the image with this id into the directory `into`.
pub(super) fn unpack(id: &str, into: &Path, limits: &Limits, owner: &str, stop: &AtomicBool) -> Result<(), ImageError> {
    remove_containers(owner)?;
    // Podman exports files only from containers, so create one without starting it.
    let label = format!("{LABEL}={owner}");
    let create = [
        "create",
        "--pull=never",
        "--network=none",
        "--label",
        &label,
        "--",
        id,
        "none",
    ];
    let container = podman(SHORT_LIMIT, stop).output(&create)?;
    let container = container.lines().last().unwrap_or_default();
    let unpacked = podman(LONG_LIMIT, stop).run(&["export", "--", container], |out| files::tar(out, into, limits));
    let removed = remove_containers(owner);
    unpacked?;
    removed
}

/// Removes what an unpacking of a killed node left in Podman's storage.
pub fn remove_containers(owner: &str) -> Result<(), ImageError> {
    if !tool::exists("podman") {
        return Ok(());
    }
    let never = AtomicBool::new(false);
    let podman = podman(SHORT_LIMIT, &never);
    let left = podman.output(&["ps", "--all", "--quiet", "--filter", &format!("label={LABEL}={owner}")])?;
    for container in left.lines() {
        podman.output(&["rm", "--force", "--", container])?;
    }
    Ok(())
}
