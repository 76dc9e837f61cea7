use mayfly_fabric::libfabric::ffi::{Endpoint, Entry, Library, Wait};
use std::time::Instant;

fn end(name: &str, wait: Wait) -> Result<Endpoint, mayfly_fabric::libfabric::FabricError> {
    let library = Library::get()?;
    let provider = library.provider(name, None, Some("127.0.0.1".parse().unwrap()))?;
    Endpoint::open(provider, 256, wait, 77)
}
fn entry(e: &mut Endpoint) -> u64 {
    let mut entries = [Entry::EMPTY; 8];
    let t = Instant::now();
    loop {
        let n = e.read(&mut entries).unwrap();
        for x in &entries[..n] {
            if x.flags & (1 << 17) != 0 {
                return x.data;
            }
        }
        assert!(t.elapsed().as_secs() < 5, "nothing came");
    }
}
#[test]
fn ping() {
    let names = std::env::var("PROV").unwrap_or("net,tcp,tcp;ofi_rxm,shm,sockets".into());
    for name in names.split(',') {
        for wait in [Wait::Never, Wait::Descriptor] {
            let t = Instant::now();
            let mut a = match end(name, wait) {
                Ok(a) => a,
                Err(e) => {
                    println!("{name}: {e}");
                    continue;
                }
            };
            let opened = t.elapsed();
            println!(
                "{name} {wait:?}: {} {} inject {} fd {:?} local {} open {opened:?}",
                a.provider().name(),
                a.provider().domain(),
                a.provider().largest_inject(),
                a.wait_descriptor(),
                a.sends_registered()
            );
            let an = a.name().unwrap();
            let (tx, rx) = std::sync::mpsc::channel();
            let (tx2, rx2) = std::sync::mpsc::channel();
            let name2 = name.to_string();
            let rounds = 20000;
            let h = std::thread::spawn(move || {
                let mut b = end(&name2, wait).unwrap();
                let mut mem = vec![0u8; 4096];
                let r = unsafe { b.register(mem.as_mut_ptr(), 4096) }.unwrap();
                b.connect(&an).unwrap();
                tx.send((b.name().unwrap(), r.target())).unwrap();
                let ta = rx2.recv().unwrap();
                for i in 0..rounds {
                    assert_eq!(entry(&mut b), i);
                    let t = Instant::now();
                    while !b
                        .inject(&mem[..64.min(b.provider().largest_inject())], ta, i as u32)
                        .unwrap()
                    {
                        entry_none(&mut b);
                        assert!(t.elapsed().as_secs() < 5);
                    }
                }
                drop(r);
            });
            let mut mem = vec![0u8; 4096];
            let r = unsafe { a.register(mem.as_mut_ptr(), 4096) }.unwrap();
            let (bn, tb) = rx.recv().unwrap();
            a.connect(&bn).unwrap();
            tx2.send(r.target()).unwrap();
            let mut lat = vec![];
            for i in 0..rounds {
                let t = Instant::now();
                mem[0] = i as u8;
                while !a
                    .inject(&mem[..64.min(a.provider().largest_inject())], tb, i as u32)
                    .unwrap()
                {
                    entry_none(&mut a);
                    assert!(t.elapsed().as_secs() < 5, "no inject");
                }
                assert_eq!(entry(&mut a), i);
                lat.push(t.elapsed());
            }
            lat.sort();
            println!("   p50 {:?} p99 {:?}", lat[lat.len() / 2], lat[lat.len() * 99 / 100]);
            h.join().unwrap();
        }
    }
}
fn entry_none(e: &mut Endpoint) {
    let mut entries = [Entry::EMPTY; 8];
    assert_eq!(e.read(&mut entries).unwrap(), 0);
}
