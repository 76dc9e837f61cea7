//! An account of this machine, and processes that run under it.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Limit for the system's programs that look up accounts, which may query other machines.
const DEADLINE: Duration = Duration::from_secs(20);
/// Search path of programs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// An account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    home: String,
    shell: String,
}

impl Account {
    /// Looks an account up in all sources of this machine. The error states why the account cannot be used.
    pub async fn find(name: &str, least_uid: u32) -> Result<Self, String> {
        // With system programs and not a library, which reads only /etc if this program is linked statically.
        let entry = said("getent", &["passwd", "--", name]).await?;
        let entry = entry.ok_or("this machine has no such account")?;
        let groups = said("id", &["-G", "--", name]).await?.ok_or("it has no groups")?;
        let account = Self::read(entry.trim_end(), groups.trim()).ok_or("its entry cannot be read")?;
        if account.name != name {
            return Err(format!("this machine calls it `{}`", account.name));
        }
        if account.uid < least_uid {
            return Err(format!(
                "its number is {}, and no account below {least_uid} is anybody's",
                account.uid
            ));
        }
        Ok(account)
    }

    fn read(entry: &str, groups: &str) -> Option<Self> {
        let fields: Vec<&str> = entry.split(':').collect();
        let [name, _, uid, gid, _, home, shell] = fields[..] else {
            return None;
        };
        let groups = groups.split_ascii_whitespace().map(|group| group.parse().ok());
        Some(Self {
            name: name.into(),
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            groups: groups.collect::<Option<_>>()?,
            home: home.into(),
            shell: shell.into(),
        })
    }

    /// Makes a command run under this account, without root's privileges and with only descriptors 0 to 2 inherited.
    pub fn runs(&self, command: &mut Command) {
        command.env_clear().current_dir("/").envs([
            ("HOME", self.home.as_str()),
            ("USER", &self.name),
            ("LOGNAME", &self.name),
            ("SHELL", &self.shell),
            ("PATH", PATH),
        ]);
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let groups: Vec<Gid> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        // Its user's files get the usual mask. Its own files are private anyway.
        dayfly_sandbox::umask::restore_for(command);
        // SAFETY: between fork and exec only system calls run, which do not allocate. The process has one thread then.
        unsafe {
            command.pre_exec(move || {
                set_thread_groups(&groups)?;
                set_thread_res_gid(gid, gid, gid)?;
                set_thread_res_uid(uid, uid, uid)?;
                // A new session, separate from the terminal.
                rustix::process::setsid()?;
                Ok(())
            });
        }
    }
}

/// Returns the output of a system program; `None` if it fails.
async fn said(program: &str, arguments: &[&str]) -> Result<Option<String>, String> {
    let mut command = tokio::process::Command::new(program);
    command
        .args(arguments)
        .env("PATH", PATH)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(DEADLINE, command.output()).await;
    let output = output
        .map_err(|_| format!("`{program}` does not answer"))?
        .map_err(|error| format!("`{program}` cannot be run: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok((output.status.success() && !text.trim().is_empty()).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_entry_is_parsed_or_refused() {
        let account = Account::read("alice:x:1001:100:Alice,,,:/people/alice:/bin/bash", "100 27").expect("an entry");
        assert_eq!((account.uid, account.gid), (1001, 100));
        assert_eq!(
            (account.groups, account.home.as_str()),
            (vec![100, 27], "/people/alice")
        );
        for wrong in ["", "alice", "alice:x:many:100::/:/", "alice:x:1:2:/home:/bin/sh"] {
            assert_eq!(Account::read(wrong, "1"), None, "{wrong}");
        }
        assert_eq!(Account::read("a:x:1:2::/:/", "1 b"), None);
    }

    #[tokio::test]
    async fn account_of_the_system_is_nobodys() {
        for (name, least_uid) in [
            ("root", 1),
            ("daemon", 1_000),
            ("no-such-account-here", 1),
            ("--help", 1),
        ] {
            assert!(Account::find(name, least_uid).await.is_err(), "{name}");
        }
    }
}
