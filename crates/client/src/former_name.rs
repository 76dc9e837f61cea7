//! State directories under the program's former name, Mayfly. They are not used; a message names the command that moves
//! them.

use std::path::{Path, PathBuf};

/// Last component of the former state directory's path.
const FORMER_NAME: &str = "mayfly";

/// Returns the former state directory beside `state_dir`, if `state_dir` does not exist.
pub fn beside(state_dir: &Path) -> Option<PathBuf> {
    let former = state_dir.with_file_name(FORMER_NAME);
    (!state_dir.exists() && former.is_dir()).then_some(former)
}

/// Returns a message with the command that moves the directory.
pub fn message(former: &Path, state_dir: &Path) -> String {
    let (former, now) = (former.display(), state_dir.display());
    format!(
        "{former} is a state directory of Mayfly, as Dayfly was called before; to go on with it, stop the programs that use it and run \
         `mv {former} {now}`; to begin anew, remove it or name another directory"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_directory_is_found_until_present_one_exists() {
        let base = tempfile::tempdir().unwrap();
        let now = base.path().join("dayfly");
        assert_eq!(beside(&now), None);
        let former = base.path().join(FORMER_NAME);
        std::fs::create_dir(&former).unwrap();
        assert_eq!(beside(&now), Some(former.clone()));
        let command = format!("`mv {} {}`", former.display(), now.display());
        assert!(message(&former, &now).contains(&command));
        std::fs::create_dir(&now).unwrap();
        assert_eq!(beside(&now), None);
    }
}
