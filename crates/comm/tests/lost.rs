//! Ranks that are killed or stopped, and how soon the others notice.

mod common;
#[path = "common/here.rs"]
mod here;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, vias};
use dayfly_comm::connect::plan::Ways;
use dayfly_comm::{JoinOptions, Joined};
use dayfly_protocol::error::Code;
use dayfly_rendezvous::server::{ServeOptions, Server, serve};
use here::{join_all, options, server};
use rustix::process::{Pid, Signal, kill_process};

/// Variable for a rank in its own process: address, name, and whether it connects.
const TASK: &str = "DAYFLY_TEST_RANK";

/// Not a test: the program of a [`Victim`].
#[test]
fn a_rank_of_its_own() {
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
        options.ways = Ways::none();
    }
    let joined = dayfly_comm::join(&options).unwrap();
    println!("joined as rank {} of {}", joined.rank, joined.size);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Variable that makes a process a rendezvous.
const SERVE: &str = "DAYFLY_TEST_SERVE";

/// Not a test: a rendezvous as a program runs it.
#[test]
fn a_rendezvous_of_its_own() {
    if std::env::var(SERVE).is_ok() {
        serve(ServeOptions::default(), |key, addresses| {
            println!("\nserves {} {key}", addresses[0])
        })
        .unwrap();
    }
}

#[test]
fn a_rendezvous_serves_until_it_is_asked_to_end() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_rendezvous_of_its_own", "--nocapture"])
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
    common::exchange(&mut here::world(&options));
    process.signal(Signal::TERM);
    assert!(process.0.wait().unwrap().success());
}

/// Rank 2 of 3, as a process.
struct Victim(Child);

impl Victim {
    fn start(server: &Server, name: &str, connects: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_rank_of_its_own", "--nocapture"])
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
fn a_rank_killed_after_all_are_connected_is_lost_by_name_within_a_heartbeat() {
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
fn a_rank_that_is_stopped_is_lost_within_a_heartbeat_too() {
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
fn a_rank_killed_while_all_wait_or_connect_ends_the_others_by_its_name() {
    // It has no way to the others, so it never finishes connecting; without one of them, all wait.
    for (name, others) in [("connecting", 2), ("waiting", 1)] {
        let server = server();
        let ranks: Vec<JoinOptions> = two(&server, name)[..others].to_vec();
        let victim = Victim::start(&server, name, "no");
        let joining = std::thread::spawn(move || join_all(&ranks));
        here::wait_for_ranks(&server, others + 1);
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
fn a_rank_that_leaves_is_no_loss_and_a_rendezvous_that_ends_takes_no_group_with_it() {
    let server = server();
    let mut ranks = here::world(&options(&server, "lasting", 3));
    drop(ranks.pop());
    drop(server);
    assert_eq!(vias(&ranks).len(), 1);
    let begun = Instant::now();
    common::exchange(&mut without_last(ranks));
    assert!(begun.elapsed() < PATIENCE);
}

/// Ranks without their roads to the last one, which has left.
fn without_last(mut ranks: Vec<Joined>) -> Vec<Joined> {
    for rank in &mut ranks {
        assert_eq!(rank.lost.count(), 0);
        rank.roads.pop();
    }
    ranks
}

#[test]
fn a_process_that_a_rank_forked_off_does_not_leave_the_group_for_it() {
    let server = server();
    let mut ranks = here::world(&options(&server, "forked", 2));
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
        assert!(begun.elapsed() < PATIENCE, "it hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
    common::exchange(&mut ranks);
    assert_eq!(server.counts(), (1, 2));
}
