//! Regions and buffers of one process: accessors, streams, and what may become private again.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use testkit::role;
use ucp::{MemMap, Rights, StableBuf, StableBufMut, Status};

use super::roles::{Actor, BY_DEVICE, NEARBY, REMOTE, WAYS, context, context_by, role_by};
use super::transports;

pub fn accessors() {
    let ctx = context();
    let region = ctx.mem_map(MemMap::allocate(4099)).unwrap();
    assert_eq!((region.len(), region.is_empty(), region.rights()), (4099, false, Rights::READ_WRITE));
    region.store(8, 0x1122_3344_5566_7788_u64).unwrap();
    assert_eq!(region.load::<u64>(8).unwrap(), 0x1122_3344_5566_7788);
    assert_eq!(region.load::<[u8; 2]>(8).unwrap(), [0x88, 0x77]);
    region.atomic_u64(8).unwrap().fetch_add(1, Ordering::SeqCst);
    assert_eq!(region.load::<u8>(8).unwrap(), 0x89);
    assert_eq!(region.atomic_u64(4).unwrap_err().status(), Status::InvalidParam);
    assert_eq!(region.atomic_u64(4096).unwrap_err().status(), Status::OutOfRange);
    assert_eq!(region.load::<u32>(4096).unwrap_err().status(), Status::OutOfRange);
    assert_eq!(region.store(4098, 7_u16).unwrap_err().status(), Status::OutOfRange);
}

pub fn streams() {
    let ctx = context();
    let region = ctx.mem_map(MemMap::allocate(10)).unwrap();
    let mut writer = region.writer();
    writer.write_all(b"0123456").unwrap();
    assert_eq!(writer.write(b"789abc").unwrap(), 3, "as much as there is room for");
    assert_eq!(writer.write_all(b"x").unwrap_err().kind(), std::io::ErrorKind::WriteZero);
    let mut text = String::new();
    region.reader().read_to_string(&mut text).unwrap();
    assert_eq!(text, "0123456789");
}

pub fn private_and_shared() {
    let ctx = context();
    let mut buf = ctx.buf(1 << 20).unwrap();
    assert!(buf.iter().all(|byte| *byte == 0));
    buf[..5].copy_from_slice(b"hello");
    let region = buf.share();
    region.write(5, b" there").unwrap();
    // Nobody was given a key: it becomes private again.
    let mut buf = region.try_into_buf().unwrap();
    assert_eq!(&buf[..11], b"hello there");
    buf[0] = b'j';
    let region = buf.share();
    let handle = region.memh_pack().unwrap();
    let mut dpu = Actor::dpu();
    dpu.import(handle.as_bytes()).ok();
    assert_eq!(dpu.read(0, 11).ok(), b"jello there");
    // From here on a peer may have it mapped, for ever.
    handle.revoke().unwrap();
    drop(handle);
    let region = region.try_into_buf().unwrap_err();
    assert_eq!(dpu.ask("view-read 5 0").ok(), b"jello");
    // The region that came back is whole.
    dpu.import(region.memh_pack().unwrap().as_bytes()).ok();
    assert_eq!(dpu.read(0, 5).ok(), b"jello");
    let empty = ctx.buf(0).unwrap();
    assert!(empty.share().try_into_buf().unwrap().is_empty());
    let owned = ctx.mem_map(MemMap::buffer(vec![1_u8; 4])).unwrap();
    assert_eq!(owned.try_into_buf().unwrap_err().len(), 4);
}

/// A region that is refused stays exported.
pub fn refused_region_stays_exported() {
    let ctx = context();
    let region = ctx.mem_map(MemMap::allocate(4096).exported()).unwrap();
    let handle = region.memh_pack().unwrap();
    let mut dpus = WAYS.map(|(tls, _)| Actor::dpu_by(tls));
    for dpu in &mut dpus {
        dpu.import(handle.as_bytes()).ok();
    }
    let region = region.try_into_buf().unwrap_err();
    for dpu in &mut dpus {
        dpu.write(0, b"still").ok();
    }
    drop(region);
    for dpu in &mut dpus {
        dpu.read(0, 1).err(Status::Stale);
    }
}

/// A buffer that does something when it is dropped.
struct OnDrop<F: FnMut()>(Vec<u8>, F);

// SAFETY: the bytes lie in the vector's heap block, which moves with no move of the value.
unsafe impl<F: FnMut() + Send + Sync + 'static> StableBuf for OnDrop<F> {
    fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

// SAFETY: the heap block belongs to the vector alone.
unsafe impl<F: FnMut() + Send + Sync + 'static> StableBufMut for OnDrop<F> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.1)();
    }
}

/// A buffer that counts its drops.
fn counted(bytes: Vec<u8>, drops: &Arc<AtomicUsize>) -> impl StableBufMut + use<> {
    let drops = Arc::clone(drops);
    OnDrop(bytes, move || {
        drops.fetch_add(1, Ordering::SeqCst);
    })
}

/// Whatever the order in which things are dropped, the buffer is dropped once, and not before the last access has ended.
pub fn owned_buffers_are_dropped_once() {
    let ways = if BY_DEVICE { [NEARBY, REMOTE] } else { ["self", "cma"] };
    for (order, tls) in (0..24).flat_map(|order| ways.map(|way| (order, way))) {
        let drops = Arc::new(AtomicUsize::new(0));
        let ctx = context();
        let region = ctx.mem_map(MemMap::buffer(counted(vec![9; 100], &drops)).exported()).unwrap();
        let handle = region.memh_pack().unwrap();
        let importer = if tls == "self" { ctx.clone() } else { context_by(tls) };
        let import = importer.mem_import(handle.as_bytes()).unwrap();
        assert_eq!(import.transport(), transports::name(tls));
        drop(importer);
        let mut things: Vec<Option<Box<dyn std::any::Any>>> = vec![
            Some(Box::new(ctx)),
            Some(Box::new(region)),
            Some(Box::new(handle)),
            Some(Box::new(import.clone())),
        ];
        let mut left = order;
        for choices in (1..=4).rev() {
            let live: Vec<usize> = (0..4).filter(|index| things[*index].is_some()).collect();
            let index = live[left % choices];
            left /= choices;
            things[index] = None;
            let expected = usize::from(index == 1 || things[1].is_none());
            // The service thread may have it in hand still, to grant it: then it is dropped a moment later.
            let begin = std::time::Instant::now();
            while tls != "self" && drops.load(Ordering::SeqCst) < expected && begin.elapsed().as_secs() < 5 {
                std::thread::yield_now();
            }
            assert_eq!(drops.load(Ordering::SeqCst), expected, "order {order}, {tls}");
        }
        assert_eq!(import.read(0, &mut [0]).unwrap_err().status(), Status::Stale);
    }
}

/// Two processes play ping-pong by words that publish what was written before them: through a view where there is one, and by
/// loads otherwise.
pub fn message_passing() {
    for (tls, components) in WAYS {
        let ctx = context();
        let region = ctx.mem_map(MemMap::allocate(8192).exported()).unwrap();
        let mut other = role_by("region::answering", tls).start();
        other.send(region.memh_pack().unwrap().as_bytes());
        let expected = if components.contains(&2) { "shm" } else { transports::name(tls) };
        assert_eq!(other.recv(), expected.as_bytes());
        for round in 1..=if BY_DEVICE { 200 } else { 2000_u64 } {
            region.write(64, &[u8::try_from(round & 0xff).unwrap(); 100]).unwrap();
            region.store(0, round).unwrap();
            while region.load::<u64>(8).unwrap() != round {
                std::thread::yield_now();
            }
            assert_eq!(
                region.load::<[u8; 100]>(4096).unwrap(),
                [u8::try_from(round & 0xff).unwrap() ^ 0xff; 100]
            );
        }
        region.store(0, u64::MAX).unwrap();
        other.expect_exit(0);
    }
}

pub fn answering() {
    let ctx = context();
    let import = ctx.mem_import(&role::recv()).unwrap();
    let view = import.view();
    assert_eq!(view.is_some(), import.transport() == "shm");
    role::send(import.transport().as_bytes());
    let mut round = 1;
    loop {
        let seen = view.as_ref().map_or_else(|| import.load::<u64>(0), |view| view.load(0));
        match seen.unwrap() {
            u64::MAX => return,
            seen if seen == round => {
                let bytes = view.as_ref().map_or_else(|| import.load(64), |view| view.load(64));
                let bytes: [u8; 100] = bytes.unwrap();
                assert_eq!(bytes, [u8::try_from(round & 0xff).unwrap(); 100]);
                import.write(4096, &bytes.map(|byte| byte ^ 0xff)).unwrap();
                import.store(8, round).unwrap();
                round += 1;
            }
            _ => std::thread::yield_now(),
        }
    }
}

/// The drop of a user's buffer is the user's code: it never runs on the service thread, also when the buffer had to be kept.
pub fn user_code_never_runs_on_the_service_thread() {
    let ctx = ucp::Context::builder()
        .features(ucp::Features::EXPORTED_MEMH)
        .set("UCX_REVOKE_TIMEOUT", "0")
        .build()
        .unwrap();
    let names: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
    let mut kept = 0;
    for round in 1..=300 {
        let told = Arc::clone(&names);
        let buffer = OnDrop(vec![0; 4 << 20], move || {
            told.lock().push(std::thread::current().name().unwrap_or("?").to_owned());
        });
        let region = ctx.mem_map(MemMap::buffer(buffer).exported()).unwrap();
        let import = ctx.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
        let reader = std::thread::Builder::new().name("reader".to_owned()).spawn(move || {
            let mut bytes = vec![0; 4 << 20];
            while import.read(0, &mut bytes).is_ok() {}
        });
        std::thread::sleep(std::time::Duration::from_micros(300));
        drop(region);
        kept += u32::from(names.lock().len() < round);
        reader.unwrap().join().unwrap();
        let begin = std::time::Instant::now();
        while names.lock().len() < round {
            assert!(begin.elapsed() < std::time::Duration::from_secs(5), "round {round}");
            std::thread::yield_now();
        }
    }
    assert!(kept > 0, "no buffer was ever kept: this shows nothing");
    let names = names.lock();
    assert!(names.iter().all(|name| name != "rucx-service"), "{names:?}");
}

/// A buffer that holds its own context, the last clone of it: dropped wherever, it ends the context.
pub fn a_buffer_may_hold_its_context() {
    let drops = Arc::new(AtomicUsize::new(0));
    for _ in 0..50 {
        let builder = ucp::Context::builder().features(ucp::Features::EXPORTED_MEMH);
        let ctx = builder.set("UCX_REVOKE_TIMEOUT", "0").build().unwrap();
        let (mut held, counter) = (Some(ctx.clone()), Arc::clone(&drops));
        let buffer = OnDrop(vec![0; 4 << 20], move || {
            drop(held.take());
            counter.fetch_add(1, Ordering::SeqCst);
        });
        let region = ctx.mem_map(MemMap::buffer(buffer).exported()).unwrap();
        let import = ctx.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
        drop(ctx);
        let reader = std::thread::spawn(move || {
            let mut bytes = vec![0; 4 << 20];
            while import.read(0, &mut bytes).is_ok() {}
        });
        std::thread::sleep(std::time::Duration::from_micros(300));
        drop(region);
        reader.join().unwrap();
    }
    let begin = std::time::Instant::now();
    while drops.load(Ordering::SeqCst) < 50 {
        assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{drops:?} of 50");
        std::thread::yield_now();
    }
}

/// Ranges that are none are refused when they are mapped.
pub fn raw_ranges_are_checked() {
    let ctx = context();
    for (start, len) in
        [(std::ptr::null_mut::<u8>(), 1), (std::ptr::without_provenance_mut(usize::MAX - 10), 100)]
    {
        // SAFETY: never accessed: mapping it fails.
        let raw = unsafe { ucp::RawMem::new(start, len) };
        let error = ctx.mem_map(MemMap::raw(raw)).unwrap_err();
        assert_eq!(error.status(), Status::InvalidParam);
        assert!(error.to_string().ends_with("is no range of addresses"), "{error}");
    }
    // SAFETY: no bytes.
    let none = unsafe { ucp::RawMem::new(std::ptr::null_mut(), 0) };
    assert!(ctx.mem_map(MemMap::raw(none)).unwrap().is_empty());
}
