//! Ranks that exchange through a store, here a directory; tests/test_stores.py uses servers.

mod common;
#[path = "common/local_group.rs"]
mod local_group;

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{TIMEOUT, exchange, routes};
use dayfly_comm::Route;
use dayfly_comm::connect::Trust;
use dayfly_comm::connect::plan::RouteOptions;
use dayfly_comm::{Channel, Communicator, Datatype, JoinOptions, Joined, Operation, Options, World};
use dayfly_protocol::error::Code;
use dayfly_rendezvous::server::Server;
use dayfly_storage::StoreUrl;
use local_group::{join_all, options, server, wait_for_ranks, world};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tempfile::{TempDir, tempdir};

fn place(directory: &Path) -> StoreUrl {
    StoreUrl::parse(&format!("file://{}", directory.display())).unwrap()
}

fn stored(server: &Server, name: &str, size: u32, directory: &Path) -> JoinOptions {
    JoinOptions {
        store: Some(place(directory)),
        channel: Channel::Stored,
        ..options(server, name, size)
    }
}

/// All files below a directory.
fn files(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(below).into_iter().flatten().flatten() {
        match entry.path() {
            directory if directory.is_dir() => found.extend(files(&directory)),
            file => found.push(file),
        }
    }
    found
}

/// A group, and the directory of its run in the store.
fn world_at(options: &JoinOptions, store: &TempDir) -> (Vec<Joined>, PathBuf) {
    let group = store.path().join("dayfly").join(&options.name);
    std::fs::create_dir_all(&group).unwrap();
    // Empty directories may be removed at any time. This one stays, and reports the run's directory however short it
    // exists.
    let keeper = group.join("keeper");
    std::fs::write(&keeper, "").unwrap();
    let made = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&made, &group, WatchFlags::CREATE).unwrap();
    let ranks = world(options);
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&made, &mut buffer);
    let run = events.next().expect("something was stored");
    let run = run.file_name().unwrap().to_str().unwrap().to_owned();
    std::fs::remove_file(keeper).unwrap();
    (ranks, group.join(run))
}

/// Runs a function on all ranks, each on its own thread.
fn over<T: Send>(ranks: Vec<Joined>, run: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    let work = |joined: Joined| {
        let options = Options {
            deadline: TIMEOUT,
            ..Options::of(Channel::Stored)
        };
        run(&World::form(joined, options).unwrap().communicator)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|joined| scope.spawn(|| work(joined))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn run_over_the_store_leaves_nothing_there() {
    let (server, store) = (server(), tempdir().unwrap());
    for trust in [Trust::Nobody, Trust::Fabric] {
        let options = JoinOptions {
            trust,
            ..stored(&server, "all", 4, store.path())
        };
        let mut ranks = world(&options);
        assert!(routes(&ranks).iter().all(|(_, route)| *route == Route::Stored));
        exchange(&mut ranks);
        drop_together(ranks);
        assert_eq!(files(store.path()), Vec::<PathBuf>::new());
        wait_for_ranks(&server, 0);
    }
    wait_for_ranks(&server, 0);
}

fn drop_together(ranks: Vec<Joined>) {
    std::thread::scope(|scope| {
        for joined in ranks {
            scope.spawn(move || drop(joined));
        }
    });
}

#[test]
fn stored_messages_longer_than_the_window_arrive_whole() {
    let (server, store) = (server(), tempdir().unwrap());
    let ranks = world(&stored(&server, "whole", 3, store.path()));
    over(ranks, |comm| {
        let (me, size) = (comm.rank(), comm.size());
        let own: Vec<u8> = (0..1000u32)
            .flat_map(|at| (f64::from(at) * f64::from(me)).to_ne_bytes())
            .collect();
        let mut sum = vec![0; own.len()];
        comm.allreduce(&own, &mut sum, Datatype::F64, &Operation::Sum).unwrap();
        let expected: Vec<u8> = (0..1000u32)
            .flat_map(|at| (f64::from(at) * 3.0).to_ne_bytes())
            .collect();
        assert_eq!(sum, expected);
        // Both directions at once, beyond the store's window.
        let length = usize::try_from(dayfly_comm::store_route::WINDOW).unwrap() + 12_345;
        let out = vec![me as u8 + 1; length];
        let mut into = vec![0; length];
        let (next, before) = ((me + 1) % size, (me + size - 1) % size);
        comm.sendrecv(&out, next, 5, &mut into, before, 5).unwrap();
        assert!(into.iter().all(|byte| u32::from(*byte) == before + 1));
        for count in 0..200u32 {
            comm.send(&count.to_ne_bytes(), next, 6).unwrap();
        }
        for count in 0..200u32 {
            let mut one = [0; 4];
            comm.recv(&mut one, before, 6).unwrap();
            assert_eq!(u32::from_ne_bytes(one), count);
        }
        comm.barrier().unwrap();
    });
    assert_eq!(files(store.path()), Vec::<PathBuf>::new());
}

#[test]
fn store_connects_ranks_without_another_route() {
    let (server, store) = (server(), tempdir().unwrap());
    let options = JoinOptions {
        store: Some(place(store.path())),
        routes: RouteOptions {
            stored_after: Duration::from_millis(100),
            ..RouteOptions::none()
        },
        ..options(&server, "last", 2)
    };
    let mut ranks = world(&options);
    assert_eq!(routes(&ranks)[0].1, Route::Stored);
    exchange(&mut ranks);
    drop_together(ranks);
    let options = JoinOptions {
        routes: RouteOptions::default(),
        ..options
    };
    let ranks = world(&options);
    assert_eq!(routes(&ranks)[0].1, Route::Local);
    drop_together(ranks);
    assert_eq!(files(store.path()), Vec::<PathBuf>::new());
}

#[test]
fn early_leaver_over_store_is_reported_and_cleaned() {
    let (server, store) = (server(), tempdir().unwrap());
    let ranks = world(&stored(&server, "early", 2, store.path()));
    over(ranks, |comm| {
        if comm.rank() == 0 {
            comm.send(b"last words", 1, 1).unwrap();
            return;
        }
        let mut heard = [0; 10];
        comm.recv(&mut heard, 0, 1).unwrap();
        assert_eq!(&heard, b"last words");
        let failure = comm.recv(&mut heard, 0, 1).unwrap_err();
        assert_eq!(failure.code, Code::RankLost, "{failure}");
    });
    assert_eq!(files(store.path()), Vec::<PathBuf>::new());
}

#[test]
fn missing_store_directory_is_named_at_once() {
    let server = server();
    let begun = Instant::now();
    for outcome in join_all(&vec![stored(&server, "none", 2, Path::new("/nonexistent/store")); 2]) {
        let failure = outcome.unwrap_err();
        // The other rank may first receive that this one could not join.
        assert!(matches!(failure.code, Code::NotFound | Code::RankLost), "{failure}");
        assert!(failure.message.contains("file:///nonexistent/store"), "{failure}");
    }
    assert!(begun.elapsed() < TIMEOUT / 4);
}

#[test]
fn ranks_with_different_stores_are_refused_naming_them() {
    let (server, one, other) = (server(), tempdir().unwrap(), tempdir().unwrap());
    let options = [&one, &other].map(|directory| stored(&server, "different", 2, directory.path()));
    for outcome in join_all(&options) {
        let failure = outcome.unwrap_err();
        assert!(matches!(failure.code, Code::Mismatch | Code::RankLost), "{failure}");
        assert!(failure.message.contains(&place(one.path()).to_string()), "{failure}");
        assert!(failure.message.contains(&place(other.path()).to_string()), "{failure}");
    }
}

#[test]
fn stored_channel_without_store_is_refused() {
    let server = server();
    let options = JoinOptions {
        channel: Channel::Stored,
        ..options(&server, "without", 2)
    };
    let failure = dayfly_comm::join(&options).unwrap_err();
    assert_eq!(failure.code, Code::InvalidRequest);
    assert!(failure.message.contains("needs a store"), "{failure}");
}

/// The error that rank 1 gets when a stranger stores these objects as rank 0's next ones.
fn hears(name: &str, forged: impl Fn(u64) -> Vec<u8> + Sync) -> String {
    let (server, store) = (server(), tempdir().unwrap());
    let (ranks, run) = world_at(&stored(&server, name, 2, store.path()), &store);
    let lane = run.join("0-1");
    let heard = over(ranks, |comm| {
        if comm.rank() == 0 {
            // Its own objects are withheld until the other rank has read the forged one.
            let failure = comm.recv(&mut [0], 1, 1).unwrap_err();
            assert_eq!(failure.code, Code::RankLost, "{failure}");
            return String::new();
        }
        for number in 0..64 {
            let temporary = store.path().join("forged");
            std::fs::write(&temporary, forged(number)).unwrap();
            // Empty directories may be removed at any time.
            while std::fs::rename(&temporary, lane.join(number.to_string())).is_err() {
                std::fs::create_dir_all(&lane).unwrap();
            }
        }
        let failure = comm.recv(&mut [0; 64], 0, 1).unwrap_err();
        assert_eq!(failure.code, Code::RankLost, "{failure}");
        failure.message
    });
    heard.concat()
}

#[test]
fn foreign_object_in_a_queue_is_refused() {
    let heard = hears("foreign", |_| {
        b"not an object of ours, but one of the same name".to_vec()
    });
    assert!(heard.contains("is not what that rank stored"), "{heard}");
}

#[test]
fn forged_object_is_refused_by_tls() {
    let heard = hears("tampered", |number| {
        let mut object = b"DFST\x01\0\0\0".to_vec();
        object.extend_from_slice(&number.to_le_bytes());
        object.extend_from_slice(&0u64.to_le_bytes());
        // A TLS 1.3 record without valid encryption.
        object.extend_from_slice(&[0x17, 3, 3, 0, 32]);
        object.extend_from_slice(&[7; 32]);
        object
    });
    assert!(heard.contains("rank 0 is lost"), "{heard}");
}

#[test]
fn other_objects_in_the_store_are_kept() {
    let (server, store) = (server(), tempdir().unwrap());
    let (ranks, run) = world_at(&stored(&server, "others", 2, store.path()), &store);
    let notes = run.join("notes.txt");
    over(ranks, |comm| {
        // Empty directories may be removed at any time.
        while std::fs::write(&notes, "somebody's").is_err() {
            std::fs::create_dir_all(notes.parent().unwrap()).unwrap();
        }
        comm.barrier().unwrap();
    });
    assert_eq!(files(store.path()), [notes]);
    dayfly_comm::store_route::clear(&place(store.path()), "others").unwrap();
    assert_eq!(files(store.path()), Vec::<PathBuf>::new());
}
