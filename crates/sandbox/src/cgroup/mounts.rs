//! Where this process may make groups.

use std::path::{Path, PathBuf};

use super::{CONTROLLERS, Controller};

/// Group of the node's own daemons, in hierarchies of version 2.
pub(super) const DAEMON_LEAF: &str = "dayfly-daemons";

/// A mount below which groups could be made.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MountedGroup {
    pub path: PathBuf,
    pub controllers: Vec<Controller>,
    pub unified: bool,
}

/// The mounts with this process's groups, from `/proc/self/mountinfo` and `/proc/self/cgroup`.
pub(super) fn mounted_groups(mounts: &str, own: &str) -> Vec<MountedGroup> {
    let own_path = |wanted: &dyn Fn(&str) -> bool| {
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            wanted(controllers).then_some(path)
        })
    };
    let mut places = Vec::new();
    for line in mounts.lines() {
        // ... root mount-point options ... - type source super-options
        let Some((head, tail)) = line.split_once(" - ") else {
            continue;
        };
        let head: Vec<&str> = head.split(' ').collect();
        let tail: Vec<&str> = tail.split(' ').collect();
        let ([_, _, _, root, at, ..], [kind, _, options]) = (head.as_slice(), tail.as_slice()) else {
            continue;
        };
        let (path, named, unified) = match *kind {
            "cgroup2" => (own_path(&str::is_empty), None, true),
            "cgroup" => {
                let named: Vec<&str> = options.split(',').collect();
                let ours = |listed: &str| listed.split(',').any(|one| !one.is_empty() && named.contains(&one));
                (own_path(&ours), Some(named.clone()), false)
            }
            _ => continue,
        };
        let Some(path) = path else { continue };
        // If an earlier node of this process, or its starter, has moved it: sandboxes are beside that group.
        let path = path
            .strip_suffix(DAEMON_LEAF)
            .map_or(path, |above| above.trim_end_matches('/'));
        let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
        let path = Path::new(at).join(below.trim_start_matches('/'));
        let named = named.map_or_else(
            || {
                let text = std::fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
                text.split_whitespace().map(str::to_string).collect()
            },
            |named| named.into_iter().map(str::to_string).collect::<Vec<_>>(),
        );
        let controllers = CONTROLLERS
            .into_iter()
            .filter(|controller| named.iter().any(|name| name == controller.name()))
            .collect::<Vec<_>>();
        if !controllers.is_empty() {
            places.push(MountedGroup {
                path,
                controllers,
                unified,
            });
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_groups_are_found_below_own_group() {
        let mounts = "\
30 24 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 24 0:28 /box /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
33 24 0:29 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd";
        let own = "9:pids:/box/inner\n4:memory:/a/b\n3:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n";
        let place = |path: &str, controllers: &[Controller]| MountedGroup {
            path: path.into(),
            controllers: controllers.to_vec(),
            unified: false,
        };
        assert_eq!(
            mounted_groups(mounts, own),
            [
                place("/sys/fs/cgroup/memory/a/b", &[Controller::Memory]),
                place("/sys/fs/cgroup/cpu,cpuacct/", &[Controller::Cpu, Controller::Cpuacct]),
                place("/sys/fs/cgroup/pids/inner", &[Controller::Pids]),
            ]
        );
    }

    #[test]
    fn no_group_is_found_without_mounts() {
        assert_eq!(mounted_groups("", "0::/\n"), []);
        assert_eq!(
            mounted_groups("nonsense - cgroup\n1 2 3 - cgroup cgroup rw,cpu", "x"),
            []
        );
    }
}
