//! The managers that a node knows: the one that it joined, and those that this one has reported.

use std::path::{Path, PathBuf};

use dayfly_protocol::api::ManagerAddress;
use dayfly_sandbox::private_file;

use crate::ManagerLink;
use crate::node::random;

/// File of the list, in the node's state directory.
const FILE: &str = "managers.json";

/// All managers, and the current one.
#[derive(Debug)]
pub struct Managers {
    path: PathBuf,
    all: Vec<ManagerAddress>,
    now: usize,
    tried: usize,
}

impl Managers {
    /// The managers of the link, and those that were stored under the same manager.
    pub fn of(link: &ManagerLink, state_dir: &Path) -> Self {
        let path = state_dir.join(FILE);
        let first = ManagerAddress {
            manager: link.url.clone(),
            ca_pem: link.ca_pem.clone(),
        };
        let mut all = vec![first];
        all.extend(link.others.iter().cloned());
        let kept = std::fs::read(&path).ok();
        let kept = kept.and_then(|json| serde_json::from_slice::<Vec<ManagerAddress>>(&json).ok());
        // Managers of another site are useless.
        if let Some(kept) = kept.filter(|kept| kept.iter().any(|one| one.manager == link.url)) {
            all.extend(kept);
        }
        let mut managers = Self {
            path,
            all: Vec::new(),
            now: 0,
            tried: 0,
        };
        managers.set(all);
        managers
    }

    fn set(&mut self, all: Vec<ManagerAddress>) {
        self.all.clear();
        for one in all {
            if self.all.iter().all(|known| known.manager != one.manager) {
                self.all.push(one);
            }
        }
    }

    /// The current manager.
    pub fn current(&self) -> &ManagerAddress {
        &self.all[self.now]
    }

    /// Switches to the next manager. Returns true when all were tried since the last one that worked.
    pub fn next(&mut self) -> bool {
        self.now = (self.now + 1) % self.all.len();
        self.tried += 1;
        let all_tried = self.tried >= self.all.len();
        if all_tried {
            self.tried = 0;
        }
        all_tried
    }

    /// Records that the current manager has registered the node, and its list of managers.
    pub fn update(&mut self, listed: Vec<ManagerAddress>) {
        self.tried = 0;
        if listed.is_empty() {
            return;
        }
        let present = self.current().clone();
        let mut listed = listed;
        // Each node has its own order, so that the nodes of a dead manager spread over the others.
        let turn = random::<1>().map_or(0, |bytes| usize::from(bytes[0]));
        let count = listed.len();
        listed.rotate_left(turn % count);
        // Keep the name by which it was reached, since that works.
        listed.insert(0, present);
        self.now = 0;
        self.set(listed);
        let written = serde_json::to_vec(&self.all).map_err(std::io::Error::other);
        if let Err(error) = written.and_then(|json| private_file::write(&self.path, &json)) {
            tracing::warn!(%error, "the list of managers cannot be stored; this node forgets it when it ends");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str) -> ManagerAddress {
        ManagerAddress {
            manager: format!("https://{name}:7070"),
            ca_pem: name.into(),
        }
    }

    fn link(name: &str) -> ManagerLink {
        ManagerLink {
            url: at(name).manager,
            ca_pem: name.into(),
            join_token: None,
            others: Vec::new(),
        }
    }

    #[test]
    fn managers_are_tried_in_turn_and_list_persists() {
        let directory = tempfile::tempdir().unwrap();
        let mut managers = Managers::of(&link("a"), directory.path());
        assert!(managers.next(), "one alone is always the last");
        assert_eq!(managers.current(), &at("a"));
        managers.update(vec![at("b"), at("a"), at("c")]);
        assert_eq!(managers.current(), &at("a"));
        for _ in 0..3 {
            let mut seen = vec![managers.current().ca_pem.clone()];
            while !managers.next() {
                seen.push(managers.current().ca_pem.clone());
            }
            seen.sort();
            assert_eq!(seen, ["a", "b", "c"]);
        }
        let again = Managers::of(&link("b"), directory.path());
        assert_eq!((again.current(), again.all.len()), (&at("b"), 3));
        let elsewhere = Managers::of(&link("z"), directory.path());
        assert_eq!(elsewhere.all, [at("z")], "another site's managers");
    }
}
