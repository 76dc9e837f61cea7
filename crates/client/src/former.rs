//! What was left under the program's former name, Mayfly: named with the command that moves it, and used for nothing.

use std::path::{Path, PathBuf};

/// The last part of the directory's path then.
const FORMER_NAME: &str = "mayfly";

/// The state directory of the former name that lies beside this one, if this one is not there.
pub fn beside(state_dir: &Path) -> Option<PathBuf> {
    let former = state_dir.with_file_name(FORMER_NAME);
    (!state_dir.exists() && former.is_dir()).then_some(former)
}

/// Says what it is, and the command that moves it to where state is kept now.
pub fn told(former: &Path, state_dir: &Path) -> String {
    let (former, now) = (former.display(), state_dir.display());
    format!(
        "{former} is a state directory of Mayfly, as Dayfly was called before; to go on with it, stop whatever uses it and run \
         `mv {former} {now}`; to begin anew, remove it or name another directory"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_directory_is_told_until_there_is_one_of_the_present_name() {
        let base = tempfile::tempdir().unwrap();
        let now = base.path().join("dayfly");
        assert_eq!(beside(&now), None);
        let former = base.path().join(FORMER_NAME);
        std::fs::create_dir(&former).unwrap();
        assert_eq!(beside(&now), Some(former.clone()));
        let command = format!("`mv {} {}`", former.display(), now.display());
        assert!(told(&former, &now).contains(&command));
        std::fs::create_dir(&now).unwrap();
        assert_eq!(beside(&now), None);
    }
}
