//! The interface of `shm`: with each peer, memory of two rings that both map, one a direction.
//!
//! The side that connects makes the memory, a sealed memfd, and passes it over the service socket of the other one's context; that
//! socket then belongs to the two workers. A byte on it wakes who sleeps, and its end tells that the peer has gone.
//!
//! ```text
//! connects ──ring, from 0───────────▶ is connected to
//!          ◀──ring, from ring_len────
//!          ◀──channel, behind both───▶
//!          ◀──socket: wake, end─────▶
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use ucs::fork::{self, Generation};
use ucs::mem::page::page_size;
use ucs::mem::shared::BoundsError;
use ucs::mem::{Mapping, MemError, Memfd};
use ucs::time::Deadline;

use super::wire::Address;
use crate::api::{
    AttachError, ComponentId, EpId, Gone, Iface, IfaceAttr, IfaceError, IfaceFlags, LinearCost, MdParams,
    NewEp, Payload, SendError, Sink,
};
use crate::channel::{self, Channel};
use crate::config::MAX_CONNECTIONS;
use crate::export::PeerState;
use crate::memory::Local;
use crate::process::Process;
use crate::ring::{BATCH, Batches, Consumer, End, Incoming, LINE, MAX_TAG, Producer, ring_len};
use crate::service::watch::{Watch, Watching};
use crate::service::{Arrival, Door, Exporter, Service, Share};
use crate::transports::places::Places;

/// Lines of a ring: 128 KiB, of which a message takes a quarter at most.
const LINES: u32 = 2048;
/// Bytes that are read at once of a body that is imported memory.
const PIECE: usize = 16 << 10;
/// Most bytes of a message.
const MAX_AM: usize = LINES as usize / 4 * LINE - LINE;
/// The number that the bell has in the epoll set; endpoints have those of their places.
const BELL: u64 = u64::MAX;

/// Where the channel lies: behind both rings.
const CHANNEL: usize = 2 * ring_len(LINES);

/// Bytes of the memory that two workers share.
fn shared_len() -> usize {
    (CHANNEL + channel::LEN).next_multiple_of(page_size())
}

/// An endpoint.
#[derive(Debug)]
struct ShmEp {
    sends: Producer,
    receives: Consumer,
    /// `None`: the peer's process cannot be told.
    channel: Option<Channel>,
    socket: Arc<OwnedFd>,
    state: Arc<PeerState>,
    _watching: Watching,
    /// There was no room for a message of so many bytes.
    wanted: Option<usize>,
    batches: Batches,
    /// It was told of as gone.
    is_over: bool,
    /// Of a peer that has connected: after its descriptors are closed, another one may come.
    _share: Option<Share>,
}

/// The interface of `shm`.
#[derive(Debug)]
pub(super) struct ShmIface {
    attr: IfaceAttr,
    service: Arc<Service>,
    boot: [u8; 16],
    context_uuid: [u8; 16],
    door: Door,
    eps: Places<ShmEp>,
    epoll: OwnedFd,
    /// It was armed, and has not looked since.
    is_armed: bool,
    generation: Generation,
}

impl ShmIface {
    pub(super) fn open(boot: [u8; 16], params: &MdParams) -> Result<Self, IfaceError> {
        let service = Arc::clone(&params.service);
        let door = service.open_door(shared_len(), params.config.get(&MAX_CONNECTIONS))?;
        let sys = |call| move |errno| MemError::of(call, errno, 0);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(sys("epoll_create1"))?;
        epoll::add(&epoll, &**door.bell(), EventData::new_u64(BELL), EventFlags::IN)
            .map_err(sys("epoll_ctl"))?;
        let attr = IfaceAttr {
            component: ComponentId::SHM,
            flags: IfaceFlags::AM
                | IfaceFlags::EVENT_FD
                | IfaceFlags::PEER_FAILURE
                | IfaceFlags::INTER_PROCESS,
            max_am: MAX_AM,
            // Of the order that `rucx perf am` shows, and no more: interfaces are compared by it, and cores lie near or far.
            am_cost: LinearCost { base: 250e-9, per_byte: 0.13e-9 },
        };
        let context_uuid = *params.exports.uuid();
        let (eps, generation) = (Places::new(), fork::generation());
        Ok(Self { attr, service, boot, context_uuid, door, eps, epoll, is_armed: false, generation })
    }

    /// Adds an endpoint over memory that both sides have mapped; who connected sends by the first ring. A peer that did has a share.
    fn add(
        &mut self,
        memory: Mapping,
        share: Option<Share>,
        socket: Arc<OwnedFd>,
        process: Option<Arc<Process>>,
    ) -> Result<EpId, AttachError> {
        let memory = Arc::new(memory);
        let (first, second) = (0, ring_len(LINES));
        let connects = share.is_none();
        let (out, back) = if connects { (first, second) } else { (second, first) };
        let channel = process
            .as_ref()
            .and_then(|process| Channel::new(Arc::clone(&memory), CHANNEL, connects, Arc::clone(process)));
        let rings = Producer::new(Arc::clone(&memory), out, LINES).zip(Consumer::new(memory, back, LINES));
        let (sends, receives) = rings.ok_or(AttachError::Malformed("the memory shared is too small"))?;
        let state = Arc::new(PeerState::with_bell(self.door.bell()));
        let mut watches = vec![Watch::Connection(Arc::clone(&socket))];
        watches.extend(process.map(Watch::Process));
        let watching = self.service.watch(&state, watches).map_err(AttachError::Service)?;
        let ep = ShmEp {
            sends,
            receives,
            channel,
            socket: Arc::clone(&socket),
            state,
            _watching: watching,
            wanted: None,
            batches: Batches::of(LINES),
            is_over: false,
            _share: share,
        };
        let id = self.eps.add(ep);
        let events = EventFlags::IN | EventFlags::RDHUP;
        if let Err(errno) = epoll::add(&self.epoll, &socket, EventData::new_u64(u64::from(id.index)), events)
        {
            self.eps.remove(id);
            return Err(AttachError::Mem(MemError::of("epoll_ctl", errno, 0)));
        }
        Ok(id)
    }

    fn welcome(&mut self, sink: &mut dyn Sink) -> usize {
        self.door.bell().clear();
        let mut told = 0;
        for Arrival { socket, process, memory, from, share } in self.door.take() {
            match self.add(memory, Some(share), Arc::new(socket), process.map(Arc::new)) {
                Ok(ep) => {
                    sink.arrived(NewEp { ep, peer: from });
                    told += 1;
                }
                // Its socket is closed: so the peer hears of it.
                Err(error) => tracing::warn!(%error, "a peer that has connected is turned away"),
            }
        }
        told
    }

    /// Awake again: what was sent to wake it is taken away.
    #[cold]
    fn disarm(&mut self) {
        self.is_armed = false;
        self.eps.each(|_, ep| {
            ep.receives.disarm();
            if let Some(len) = ep.wanted {
                ep.sends.disarm();
                // Without room it is still waited for, whether or not the message was refused before this.
                ep.wanted = Some(len).filter(|len| !ep.sends.has_room(*len));
            }
        });
        let mut buffer = [const { std::mem::MaybeUninit::<Event>::uninit() }; 64];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut buffer, Some(&Timespec::default())) else {
            return;
        };
        for event in events {
            match event.data.u64() {
                BELL => self.door.bell().clear(),
                index => {
                    if let Some(ep) = u32::try_from(index).ok().and_then(|index| self.eps.at(index)) {
                        ep.forget_wakes();
                    }
                }
            }
        }
    }
}

impl ShmEp {
    /// Takes the bytes that were sent to wake this side. There are as many as the socket holds at most, and each costs its sender a
    /// system call.
    fn forget_wakes(&self) {
        let mut bytes = [0; 64];
        for _ in 0..BATCH {
            if !matches!(recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT), Ok((_, 1..))) {
                break;
            }
        }
    }

    /// Has the peer wake this side from here on. `false`: there is something to do.
    fn may_sleep(&mut self) -> bool {
        let is_full = self.wanted.is_none_or(|len| self.sends.arm(len));
        is_full && self.receives.arm() && !self.state.is_gone() && !self.sends.is_corrupt()
    }

    /// Tells the peer that there is no more to come, nor to be had.
    fn end(&self) {
        self.channel.iter().for_each(Channel::close);
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    fn wake(&self) {
        // Full: then it is awake, or will be. Closed: then nobody is.
        let _ = send(&self.socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes messages; answers how many, or why there will be no more.
    #[inline]
    fn receive(&mut self, id: EpId, sink: &mut dyn Sink) -> Result<usize, Gone> {
        if self.sends.is_corrupt() {
            return Err(Gone::Corrupt); // there will be no room ever again
        }
        let (batches, state) = (&mut self.batches, &self.state);
        let took = batches.take(
            &mut self.receives,
            || state.is_gone(),
            |message| sink.am(id, message.tag(), &Bytes(message)),
        );
        took.map_err(|end| match end {
            End::Gone => Gone::Closed,
            End::Corrupt => Gone::Corrupt,
        })
    }
}

impl Drop for ShmIface {
    fn drop(&mut self) {
        // A fork's child has copies of the sockets: closing them here would tell nobody. Dropped in the child, they are the parent's.
        if self.generation.is_current() {
            self.eps.each(|_, ep| ep.end());
        }
    }
}

struct Bytes<'a, 'r>(&'a Incoming<'r>);

impl Payload for Bytes<'_, '_> {
    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn read(&self, at: usize, dst: &mut [u8]) -> Result<(), BoundsError> {
        self.0.read(at, dst)
    }
}

impl Iface for ShmIface {
    fn attr(&self) -> &IfaceAttr {
        &self.attr
    }

    fn address(&self) -> Vec<u8> {
        let address = Address {
            process: *self.service.me(),
            worker: self.door.number(),
            token: *self.door.token(),
            context_uuid: self.context_uuid,
            in_directory: self.service.is_in_directory(),
            boot: self.boot,
        };
        address.encode().to_vec()
    }

    fn connect(&mut self, address: &[u8], deadline: &Deadline) -> Result<NewEp, AttachError> {
        let address = Address::decode(address).map_err(AttachError::Malformed)?;
        if address.boot != self.boot {
            return Err(AttachError::Elsewhere {
                reason: "the peer is on another system, or on this one before it was booted anew",
                remedy: "run both sides on one system, or on two with RDMA devices and with verbs allowed in UCX_TLS",
            });
        }
        let exporter = Exporter::of_worker(address.context_uuid, address.process, address.in_directory);
        let (file, memory) = Memfd::create("rucx-rings", shared_len(), false)?;
        let worker = (address.worker, address.token);
        let connected = self.service.connect(&exporter, worker, &file, deadline)?;
        let ep = self.add(memory, None, connected.socket, Some(connected.process))?;
        Ok(NewEp { ep, peer: address.context_uuid })
    }

    fn disconnect(&mut self, ep: EpId) {
        if let Some(ep) = self.eps.remove(ep) {
            // The set would go on telling of it while a fork's child has it open.
            let _ = epoll::delete(&self.epoll, &ep.socket);
            ep.end();
        }
    }

    fn channel(&mut self, ep: EpId) -> Option<Channel> {
        self.eps.get(ep)?.channel.as_ref().filter(|channel| channel.is_ready()).cloned()
    }

    #[inline]
    fn am(
        &mut self,
        ep: EpId,
        tag: u32,
        [first, second]: [&[u8]; 2],
        body: &Local<'_>,
    ) -> Result<(), SendError> {
        let max = self.attr.max_am;
        let ep = self.eps.get(ep).filter(|ep| !ep.is_over).ok_or(SendError::Gone)?;
        let head = first.len() + second.len();
        let len = head.saturating_add(body.len());
        if len > max {
            return Err(SendError::TooLong);
        }
        let Some(mut message) = ep.sends.begin(len) else {
            ep.wanted = Some(len);
            let is_over = ep.state.is_gone() || ep.sends.is_corrupt();
            return Err(if is_over { SendError::Gone } else { SendError::Full });
        };
        ep.wanted = None;
        message.write(0, first);
        message.write(first.len(), second);
        // Not published when it fails: nothing is sent.
        body.in_pieces(PIECE, |at, piece| {
            message.write(head + at, piece);
            Ok(())
        })?;
        message.publish(tag & MAX_TAG);
        if ep.sends.must_wake() {
            ep.wake();
        }
        Ok(())
    }

    fn progress(&mut self, sink: &mut dyn Sink) -> usize {
        if self.is_armed {
            self.disarm();
        }
        let mut told = if self.door.has_news() { self.welcome(sink) } else { 0 };
        let epoll = &self.epoll;
        self.eps.each(|id, ep| {
            if ep.is_over {
                return;
            }
            match ep.receive(id, sink) {
                Ok(0) => {}
                Ok(count) => told += count,
                Err(why) => {
                    ep.is_over = true;
                    // Else its end would be told by the set until it is disconnected, and nobody could sleep.
                    let _ = epoll::delete(epoll, &ep.socket);
                    sink.gone(id, why);
                    told += 1;
                }
            }
            if ep.receives.must_wake() {
                ep.wake();
            }
        });
        told
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn arm(&mut self) -> bool {
        self.is_armed = true;
        let mut idle = true;
        self.eps.each(|_, ep| idle &= ep.is_over || ep.may_sleep());
        let idle = idle && !self.door.has_news();
        if !idle {
            self.disarm();
        }
        idle
    }
}
