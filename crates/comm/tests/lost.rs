//! Ranks that are killed or stopped, and how soon the others notice.

mod common;
#[path = "common/local_group.rs"]
mod local_group;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{TIMEOUT, routes};
use dayfly_comm::connect::plan::RouteOptions;
use dayfly_comm::{JoinOptions, Joined};
use dayfly_protocol::error::Code;
use dayfly_rendezvous::server::{ServeOptions, Server, serve};
use local_group::{join_all, options, server};
use rustix::process::{Pid, Signal, kill_process};

/// Variable for a rank in its own process: address, name, and whether it connects.
const TASK: &str = "DAYFLY_TEST_RANK";

/// Not a test: the program of a [`Victim`].
#[test]
fn child_process_rank() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let [server, name, connects] = task.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{task}");
    };
    let mut options = JoinOptions {
        rank: Some(2),
        ..common::at(server.parse().unwrap(), name, 3)
    };
    if connects == "no" {
        options.routes = RouteOptions::none();
    }
    let joined = dayfly_comm::join(&options).unwrap();
    println!("joined as rank {} of {}", joined.rank, joined.size);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Variable that makes a process a rendezvous.
const SERVE: &str = "DAYFLY_TEST_SERVE";

/// Not a test: a rendezvous as a program runs it.
#[test]
fn child_process_rendezvous() {
    if std::env::var(SERVE).is_ok() {
        serve(ServeOptions::default(), |key, addresses| {
            println!("\nserves {} {key}", addresses[0])
        })
        .unwrap();
    }
}

#[test]
fn rendezvous_serves_until_terminated() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process_rendezvous", "--nocapture"])
        .env(SERVE, "1")
        .stdout(Stdio::piped())
        .spawn();
    let mut process = Victim(child.expect("it runs"));
    let ready = process.line("serves ");
    let [_, address, key] = ready.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{ready}");
    };
    let options = JoinOptions {
        server_key: Some(key.parse().unwrap()),
        ..common::at(address.parse().unwrap(), "served", 3)
    };
    common::exchange(&mut local_group::world(&options));
    process.signal(Signal::TERM);
    assert!(process.0.wait().unwrap().success());
}

/// Rank 2 of 3, as a process.
struct Victim(Child);

impl Victim {
    fn start(server: &Server, name: &str, connects: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_process_rank", "--nocapture"])
            .env(TASK, format!("{} {name} {connects}", server.addresses()[0]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Self(child.expect("it runs"))
    }

    /// Waits for a line that contains `with`.
    fn line(&mut self, with: &str) -> String {
        let output = BufReader::new(self.0.stdout.as_mut().expect("its output"));
        let mut lines = output.lines().map_while(Result::ok);
        lines
            .find(|line| line.contains(with))
            .expect("it says so before it ends")
    }

    fn has_joined(&mut self) {
        self.line("joined as rank 2 of 3");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it is there");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn two(server: &Server, name: &str) -> Vec<JoinOptions> {
    [0, 1]
        .map(|rank| JoinOptions {
            rank: Some(rank),
            ..options(server, name, 3)
        })
        .into()
}

fn hears(ranks: &[Joined], within: Duration) -> Duration {
    let begun = Instant::now();
    for rank in ranks {
        while rank.lost.check(2).is_ok() {
            assert!(begun.elapsed() < within, "rank {} has not heard", rank.rank);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    begun.elapsed()
}

#[test]
fn killed_rank_is_named_within_a_heartbeat() {
    let server = server();
    let mut victim = Victim::start(&server, "after", "yes");
    let ranks: Vec<Joined> = join_all(&two(&server, "after"))
        .into_iter()
        .map(Result::unwrap)
        .collect();
    victim.has_joined();
    assert!(ranks.iter().all(|rank| rank.lost.count() == 0));
    victim.signal(Signal::KILL);
    let heard = hears(&ranks, Duration::from_secs(1));
    println!("a killed rank: heard after {} ms", heard.as_millis());
    let failure = ranks[0].lost.check(2).unwrap_err();
    assert!(
        failure.message.contains("rank 2 is lost: its process ended"),
        "{failure}"
    );
}

#[test]
fn stopped_rank_is_lost_within_a_heartbeat() {
    let server = server();
    let mut victim = Victim::start(&server, "stopped", "yes");
    let ranks: Vec<Joined> = join_all(&two(&server, "stopped"))
        .into_iter()
        .map(Result::unwrap)
        .collect();
    victim.has_joined();
    victim.signal(Signal::STOP);
    let heard = hears(&ranks, Duration::from_secs(2));
    println!("a stopped rank: heard after {} ms", heard.as_millis());
    let failure = ranks[1].lost.check(2).unwrap_err();
    assert!(
        failure.message.contains("rank 2 is lost: it was silent for 1000 ms"),
        "{failure}"
    );
}

#[test]
fn rank_killed_while_joining_is_named_to_all() {
    // It has no way to the others, so it never finishes connecting; without one of them, all wait.
    for (name, others) in [("connecting", 2), ("waiting", 1)] {
        let server = server();
        let ranks: Vec<JoinOptions> = two(&server, name)[..others].to_vec();
        let victim = Victim::start(&server, name, "no");
        let joining = std::thread::spawn(move || join_all(&ranks));
        local_group::wait_for_ranks(&server, others + 1);
        victim.signal(Signal::KILL);
        let begun = Instant::now();
        for result in joining.join().unwrap() {
            let failure = result.unwrap_err();
            assert_eq!(failure.code, Code::RankLost, "{failure}");
            assert!(failure.message.contains("lost while the group formed"), "{failure}");
        }
        let took = begun.elapsed();
        println!("{name}: heard after {} ms", took.as_millis());
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}

#[test]
fn leaving_rank_or_ended_rendezvous_is_no_loss() {
    let server = server();
    let mut ranks = local_group::world(&options(&server, "lasting", 3));
    drop(ranks.pop());
    drop(server);
    assert_eq!(routes(&ranks).len(), 1);
    let begun = Instant::now();
    common::exchange(&mut without_last(ranks));
    assert!(begun.elapsed() < TIMEOUT);
}

/// Ranks without their connections to the last one, which has left.
fn without_last(mut ranks: Vec<Joined>) -> Vec<Joined> {
    for rank in &mut ranks {
        assert_eq!(rank.lost.count(), 0);
        rank.connections.pop();
    }
    ranks
}

#[test]
fn forked_child_does_not_leave_the_group() {
    let server = server();
    let mut ranks = local_group::world(&options(&server, "forked", 2));
    // SAFETY: the child only drops its values, and ends without the test's other threads.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(ranks);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(0) };
    }
    let child = Pid::from_raw(child).expect("a child");
    let begun = Instant::now();
    while rustix::process::waitpid(Some(child), rustix::process::WaitOptions::NOHANG)
        .unwrap()
        .is_none()
    {
        assert!(begun.elapsed() < TIMEOUT, "it hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
    common::exchange(&mut ranks);
    assert_eq!(server.counts(), (1, 2));
}
