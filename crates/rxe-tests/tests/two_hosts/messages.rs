//! Messages between workers of two hosts, by the interface of `verbs`: A sends, B sends back, each counted by the devices.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rxe_tests::{Host, Hosts, counters};
use testkit::Rng;
use ucs::config::Config;
use ucs::time::Deadline;
use uct::api::{EpId, Gone, Iface, Md, MdParams, NewEp, Payload, SendError, Sink};
use uct::export::ExportTable;
use uct::memory::Local;
use uct::service::Service;

use crate::{Line, PATIENCE};

const COUNT: u32 = 300;

#[derive(Default)]
struct Log {
    arrived: Vec<EpId>,
    messages: VecDeque<(EpId, u32, Vec<u8>)>,
    gone: Vec<Gone>,
}

impl Sink for Log {
    fn arrived(&mut self, new: NewEp) {
        self.arrived.push(new.ep);
    }

    fn am(&mut self, ep: EpId, tag: u32, payload: &dyn Payload) {
        let mut bytes = vec![0; payload.len()];
        payload.read(0, &mut bytes).unwrap();
        self.messages.push_back((ep, tag, bytes));
    }

    fn gone(&mut self, _ep: EpId, why: Gone) {
        self.gone.push(why);
    }
}

/// An interface of a context of its own.
struct End {
    iface: Box<dyn Iface>,
    log: Log,
    _md: Arc<dyn Md>,
}

impl End {
    fn open(device: &str) -> Self {
        let all = uct::transports::components();
        let component = all.iter().find(|component| component.name() == "verbs").unwrap();
        let exports = Arc::new(ExportTable::new(Duration::from_secs(5)).unwrap());
        let service = Arc::new(Service::new(Arc::clone(&exports), None));
        let config = Config::builder(uct::config::VARS).vars(component.vars()).ignore_env().build().unwrap();
        let resources = component.query_mds();
        let resource = resources.iter().find(|resource| resource.name == device).expect("its device");
        let md = component.open_md(resource, &MdParams { exports, service, config }).unwrap();
        let iface = md.open_iface().unwrap().unwrap();
        Self { iface, log: Log::default(), _md: md }
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !is_so(self) {
            assert!(begin.elapsed() < PATIENCE, "not in time: {what}");
            if self.iface.progress(&mut self.log) == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn send(&mut self, ep: EpId, tag: u32, bytes: &[u8]) {
        self.until("room", |end| match end.iface.am(ep, tag, [&[], &[]], &Local::bytes(bytes)) {
            Ok(()) => true,
            Err(SendError::Full) => false,
            Err(error) => panic!("message {tag}: {error}"),
        });
    }
}

fn content(tag: u32, max: usize) -> Vec<u8> {
    let mut bytes = vec![0; if tag.is_multiple_of(3) { max } else { tag as usize }];
    Rng::new(tag.into()).fill(&mut bytes);
    bytes
}

pub(crate) fn text_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn bytes_of(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// What this host does, and what its device has counted then.
pub(crate) fn talk(host: Host, hosts: Hosts) {
    let device = host.device(hosts);
    let mut end = End::open(&device);
    let max = end.iface.attr().max_am;
    let mut line = Line::open(host);
    let theirs = bytes_of(&line.swap_text(&text_of(&end.iface.address())));
    let before = counters(&device).unwrap();
    if host == Host::A {
        let ep = end.iface.connect(&theirs, &Deadline::after(PATIENCE)).unwrap().ep;
        for tag in 0..COUNT {
            end.send(ep, tag, &content(tag, max));
        }
        end.until("all of them", |end| end.log.messages.len() == COUNT as usize);
        for (tag, (from, its, bytes)) in (0..).zip(&end.log.messages) {
            assert!((*from, *its) == (ep, tag) && *bytes == content(tag, max), "message {tag}");
        }
        end.iface.disconnect(ep);
    } else {
        let mut back = 0;
        end.until("A's end", |end| {
            while let Some((ep, tag, bytes)) = end.log.messages.front() {
                match end.iface.am(*ep, *tag, [&[], &[]], &Local::bytes(bytes)) {
                    Ok(()) => back += 1,
                    Err(SendError::Full) => break,
                    Err(error) => panic!("message {tag}: {error}"),
                }
                end.log.messages.pop_front();
            }
            !end.log.gone.is_empty()
        });
        assert_eq!((back, end.log.gone.as_slice()), (COUNT, &[Gone::Closed][..]));
        end.iface.disconnect(end.log.arrived[0]);
    }
    // TCP has carried a few hundred bytes; what is beyond that, the devices have.
    let bytes: usize = (0..COUNT).map(|tag| content(tag, max).len()).sum();
    let packets = (bytes / 4096) as u64;
    let rise = counters(&device).unwrap().since(&before);
    assert!(rise.sent() >= packets && rise.received() >= packets, "{packets} packets each way: {rise:?}");
    line.swap_words("counted");
}
