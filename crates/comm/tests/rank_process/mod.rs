//! Ranks in processes of their own, for tests that kill them.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use dayfly_comm::{PeerConnection, Route};

/// What a process finds in its environment.
pub struct Start {
    pub words: Vec<String>,
    pub rank: u32,
    pub connections: Vec<Option<PeerConnection>>,
}

impl Start {
    /// `None` in a process that no test started.
    pub fn from_environment() -> Option<Self> {
        let text = std::env::var("TEST_RANK").ok()?;
        let (words, connections) = text.split_once(" | ")?;
        let mut words: Vec<String> = words.split(' ').map(str::to_string).collect();
        let rank = words.pop()?.parse().ok()?;
        let connection = |word: &str| {
            let (net, descriptor) = word.split_once(':')?;
            // SAFETY: the parent left us this descriptor for this purpose.
            let socket = unsafe { OwnedFd::from_raw_fd(descriptor.parse().unwrap()) };
            Some(match net {
                "shm" => PeerConnection::Local(socket.into()),
                _ => PeerConnection::Remote {
                    socket: socket.into(),
                    session: None,
                    route: Route::Direct,
                },
            })
        };
        let connections = connections.split(' ').map(connection).collect();
        Some(Self {
            words,
            rank,
            connections,
        })
    }
}

/// A process. Dropping it kills it.
pub struct Rank {
    child: Child,
    lines: BufReader<std::process::ChildStderr>,
}

impl Rank {
    /// Starts an ignored test of this program, with words for it.
    pub fn start(test: &str, words: &str, rank: usize, connections: Vec<Option<PeerConnection>>) -> Self {
        let sockets: Vec<Option<(&str, OwnedFd)>> = connections
            .into_iter()
            .map(|connection| match connection? {
                PeerConnection::Local(socket) => Some(("shm", socket.into())),
                PeerConnection::Remote { socket, .. } => Some(("tcp", socket.into())),
                PeerConnection::Carried { .. } | PeerConnection::Stored { .. } => {
                    unreachable!("these ranks have sockets of their own")
                }
            })
            .collect();
        let mut text = format!("{words} {rank} |");
        for socket in &sockets {
            match socket {
                Some((net, socket)) => text += &format!(" {net}:{}", socket.as_raw_fd()),
                None => text += " none",
            }
        }
        let inherited: Vec<i32> = sockets.iter().flatten().map(|(_, socket)| socket.as_raw_fd()).collect();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env("TEST_RANK", text)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // SAFETY: the closure only makes system calls.
        unsafe {
            command.pre_exec(move || {
                for descriptor in &inherited {
                    libc::fcntl(*descriptor, libc::F_SETFD, 0);
                }
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        Self { child, lines }
    }

    /// Starts a process for each rank, and waits until all have printed that they run. `what` describes them.
    pub fn start_group(
        test: &str,
        words: &str,
        connections: Vec<Vec<Option<PeerConnection>>>,
        what: &str,
    ) -> Vec<Self> {
        let ranks = connections.into_iter().enumerate();
        let mut ranks: Vec<Self> = ranks
            .map(|(rank, connections)| Self::start(test, words, rank, connections))
            .collect();
        for rank in &mut ranks {
            assert_eq!(rank.line().trim(), "running", "{what}");
        }
        ranks
    }

    /// The ranks but the killed one, with their numbers.
    pub fn others(ranks: &mut [Self], victim: usize) -> impl Iterator<Item = (usize, &mut Self)> {
        ranks
            .iter_mut()
            .enumerate()
            .filter(move |(number, _)| *number != victim)
    }

    /// Waits until each rank but the killed one has printed that all of these are left.
    pub fn assert_left(ranks: &mut [Self], victim: usize, what: &str) {
        let left = format!("{} left", ranks.len() - 1);
        for (number, rank) in Self::others(ranks, victim) {
            assert_eq!(rank.line().trim(), left, "{what}, rank {number}");
        }
    }

    /// The next line that the process printed.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
