//! The interface of `verbs`: with each peer a reliable connection of two queue pairs.
//!
//! ```text
//! connects ──call: queue pair──────────▶ service ──▶ entrance: connects one of its own
//!          ◀─reply: that queue pair─────
//!          ══greeting, messages, end═══▶ is connected to
//!          ◀═messages, end══════════════
//!          ──TCP connection: life───────▶ its end tells that the peer's process is gone
//! ```

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use ucs::Status;
use ucs::fork::{self, Generation};
use ucs::mem::MemError;
use ucs::time::Deadline;

use super::endpoint::{DEVICE_TRIES, Endpoint, Leaving, MAX_AM};
use super::entrance::Entrance;
use super::life::Life;
use super::queue::{MESSAGES, OpenError, Opening};
use super::wire::{Address, Call, Link, Reply};
use crate::api::{
    AttachError, ComponentId, EpId, Iface, IfaceAttr, IfaceError, IfaceFlags, LinearCost, MdParams, NewEp,
    SendError, Sink,
};
use crate::config::MAX_CONNECTIONS;
use crate::doorbell::Doorbell;
use crate::memory::Local;
use crate::registrations::Held;
use crate::service::{NetCall, NetError, NetLink, Responder, Service};
use crate::transports::places::Places;
use crate::transports::verbs::address::to_listen_at;
use crate::transports::verbs::device::Device;
use crate::transports::verbs::sys::Channel;

/// Kinds of calls to interfaces: each of a context has its own.
const KINDS: std::ops::RangeInclusive<u16> = 0x1000..=0x1fff;
/// How long an endpoint that is given up is kept for what it has sent to arrive, while progress is made.
const LINGER: Duration = DEVICE_TRIES;
/// How long a dropped interface waits for that.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The interface of `verbs`.
#[derive(Debug)]
pub(in crate::transports::verbs) struct RcIface {
    attr: IfaceAttr,
    device: Arc<Device>,
    service: Arc<Service>,
    context_uuid: [u8; 16],
    address: Address,
    entrance: Arc<Entrance>,
    bell: Arc<Doorbell>,
    eps: Places<(Endpoint, Option<Arc<Life>>)>,
    leaving: Vec<(Leaving, Option<Arc<Life>>)>,
    /// The peers that this side has connected to, each by its context and instance.
    lives: HashMap<([u8; 16], [u8; 8]), Weak<Life>>,
    channel: Arc<Channel>,
    epoll: OwnedFd,
    /// An endpoint that was given up has let go of what it held, since progress was made.
    has_let_go: bool,
    /// It was armed, and has not looked since.
    is_armed: bool,
    generation: Generation,
}

impl RcIface {
    pub(in crate::transports::verbs) fn open(
        device: &Arc<Device>,
        params: &MdParams,
    ) -> Result<Self, IfaceError> {
        let service = Arc::clone(&params.service);
        let sockets = service.serve_net(&to_listen_at(device, &params.config)?)?;
        let failed = |what| move |errno| IfaceError::Device { what, errno };
        let channel = Channel::new(&device.context).map_err(failed("ibv_create_comp_channel"))?;
        let (channel, bell) = (Arc::new(channel), Arc::new(Doorbell::new()?));
        let sys = |call| move |errno| MemError::of(call, errno, 0);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(sys("epoll_create1"))?;
        for fd in [channel.as_fd(), bell.as_fd()] {
            epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN).map_err(sys("epoll_ctl"))?;
        }
        let mut instance = [0; 8];
        instance.copy_from_slice(&params.exports.token().as_bytes()[..8]);
        let secret = (params.exports.token(), instance);
        let most = params.config.get(&MAX_CONNECTIONS);
        let entrance = Entrance::new(device, &channel, secret, &bell, most);
        let responder: Arc<dyn Responder> = Arc::clone(&entrance) as _;
        let kind = service.respond_in(KINDS, Arc::downgrade(&responder)).ok_or(IfaceError::Missing {
            what: "a number for one more interface of this context",
            remedy: "drop workers that are no longer used",
        })?;
        let context_uuid = *params.exports.uuid();
        let (token, instance) = (entrance.token(), entrance.instance());
        let link = if device.port.is_ethernet { Link::Ethernet } else { Link::InfiniBand };
        let address = Address { context_uuid, token, instance, kind, link, sockets };
        let attr = IfaceAttr {
            component: ComponentId::VERBS,
            flags: IfaceFlags::AM
                | IfaceFlags::EVENT_FD
                | IfaceFlags::PEER_FAILURE
                | IfaceFlags::INTER_PROCESS
                | if device.gathers { IfaceFlags::GATHER } else { IfaceFlags::empty() },
            max_am: MAX_AM,
            // Of the order of a card's; more than by shm, so that is used where both reach.
            am_cost: LinearCost { base: 1.5e-6, per_byte: 0.2e-9 },
        };
        Ok(Self {
            attr,
            device: Arc::clone(device),
            service,
            context_uuid,
            address,
            entrance,
            bell,
            eps: Places::new(),
            leaving: Vec::new(),
            lives: HashMap::new(),
            channel,
            epoll,
            has_let_go: false,
            is_armed: false,
            generation: fork::generation(),
        })
    }

    /// Goes on with endpoints that were given up.
    fn tend(&mut self) {
        self.leaving.retain_mut(|(leaving, _)| {
            let is_done = leaving.is_done();
            self.has_let_go |= leaving.has_let_go(is_done);
            !is_done
        });
    }

    /// Asks the interface at `address` for a queue pair. A connection of its own is called on, so nobody else minds when that fails; which
    /// ends again if there is one by which that peer's end is told already.
    fn ask(
        &mut self,
        address: &Address,
        opening: &Opening,
        deadline: &Deadline,
    ) -> Result<(Reply, Arc<Life>, Arc<NetLink>), AttachError> {
        let peer = (address.context_uuid, address.instance);
        loop {
            self.lives.retain(|_, life| life.strong_count() > 0);
            let known = self.lives.get(&peer).and_then(Weak::upgrade).filter(|life| !life.state().is_gone());
            let call = Call {
                qp: opening.address(),
                context_uuid: self.context_uuid,
                life: known.as_ref().map_or(0, |life| life.number()),
                receives: MESSAGES,
            };
            let answer = self.service.call_net_alone(
                &address.context_uuid,
                &address.sockets,
                &NetCall {
                    kind: address.kind,
                    subject: &address.instance,
                    token: &address.token,
                    request: &call.encode(),
                },
                deadline,
            );
            let (link, reply) = match answer {
                // It has noticed the end of that connection before this side has: without it, then.
                Err(NetError::Refused { status: Status::Stale, .. }) if known.is_some() => {
                    self.lives.remove(&peer);
                    continue;
                }
                Err(NetError::Refused { status: Status::ExceedsLimit, .. }) => {
                    return Err(AttachError::TooMany);
                }
                Err(NetError::Refused { status: Status::NoResource | Status::NoMemory, address }) => {
                    return Err(AttachError::Unreachable {
                        reason: format!("{address} cannot make an endpoint for this process"),
                        remedy: "see the peer's log: raise its `ulimit -l`, or have it close endpoints that are no longer used",
                    });
                }
                Err(error @ NetError::TimedOut { .. }) => {
                    return Err(AttachError::Unreachable {
                        reason: error.to_string(),
                        remedy: "see whether the peer is stopped, or raise UCX_CONNECT_TIMEOUT",
                    });
                }
                Err(error) => return Err(AttachError::of_net(error)),
                Ok(answer) => answer,
            };
            let reply = Reply::decode(&reply).map_err(|why| AttachError::Unreachable {
                reason: format!("the peer's answer: {why}"),
                remedy: "see that both sides run compatible versions of rucx",
            })?;
            let life = match known {
                Some(life) => life,
                None => {
                    let life = Life::new(&self.service, &link, reply.life, &self.bell)?;
                    self.lives.insert(peer, Arc::downgrade(&life));
                    life
                }
            };
            return Ok((reply, life, link));
        }
    }

    /// An endpoint by which messages may be sent.
    #[inline]
    fn sender(&mut self, ep: EpId) -> Result<&mut Endpoint, SendError> {
        match self.eps.get(ep) {
            Some((ep, _)) if !ep.is_over && !ep.is_unknown() => Ok(ep),
            _ => Err(SendError::Gone),
        }
    }

    fn welcome(&mut self) {
        for ep in self.entrance.take() {
            self.eps.add((ep, None));
        }
    }

    /// Awake again: what woke it is taken away.
    #[cold]
    fn disarm(&mut self) {
        self.is_armed = false;
        self.eps.each(|_, (ep, _)| ep.disarm());
        self.bell.clear();
        while self.channel.take() {}
    }
}

fn unreachable(error: &OpenError) -> AttachError {
    let remedy = match error {
        OpenError::Mem(error) => return AttachError::Mem(error.clone()),
        OpenError::Reg(error) => error.remedy(),
        OpenError::Device { .. } => {
            "close endpoints that are no longer used: a device has so many queue pairs"
        }
    };
    AttachError::Unreachable { reason: format!("no queue pair for it: {error}"), remedy }
}

impl Iface for RcIface {
    fn attr(&self) -> &IfaceAttr {
        &self.attr
    }

    fn address(&self) -> Vec<u8> {
        self.address.encode().to_vec()
    }

    fn connect(&mut self, address: &[u8], deadline: &Deadline) -> Result<NewEp, AttachError> {
        let address = Address::decode(address).map_err(AttachError::Malformed)?;
        if address.link != self.address.link {
            return Err(AttachError::Unreachable {
                reason: "one side's RDMA port is of Ethernet, and the other side's of InfiniBand".to_owned(),
                remedy: "use devices of one network on both sides",
            });
        }
        self.tend();
        let opening = Opening::new(&self.device, &self.channel).map_err(|error| unreachable(&error))?;
        // Held until the greeting has come: its end before that gives up what was asked for.
        let (reply, life, _asked) = self.ask(&address, &opening, deadline)?;
        let failed = |why: String| AttachError::Unreachable {
            reason: format!("the peer answers, and its RDMA device does not: {why}"),
            remedy: "see `rdma link` on both sides, and that UDP port 4791 is let through between them",
        };
        let queue = opening.connect(&reply.qp).map_err(|errno| failed(format!("ibv_modify_qp: {errno}")))?;
        let mut ep = Endpoint::new(queue, &self.device, reply.receives, Arc::clone(life.state()), None);
        ep.greet(deadline).map_err(failed)?;
        let ep = self.eps.add((ep, Some(life)));
        Ok(NewEp { ep, peer: address.context_uuid })
    }

    fn disconnect(&mut self, ep: EpId) {
        self.tend();
        if let Some((ep, life)) = self.eps.remove(ep)
            && !ep.is_over
        {
            let mut leaving = Leaving::new(ep, Deadline::after(LINGER));
            if !leaving.is_done() {
                self.leaving.push((leaving, life));
            }
        }
    }

    #[inline]
    fn am(&mut self, ep: EpId, tag: u32, head: [&[u8]; 2], body: &Local<'_>) -> Result<(), SendError> {
        self.sender(ep)?.am(tag, head, body)
    }

    #[inline]
    fn am_held(
        &mut self,
        ep: EpId,
        tag: u32,
        head: &[u8],
        body: &Arc<Held>,
        part: Range<usize>,
    ) -> Result<(), SendError> {
        self.sender(ep)?.am_held(tag, head, body, part)
    }

    fn progress(&mut self, sink: &mut dyn Sink) -> usize {
        if self.is_armed {
            self.disarm();
        }
        if self.entrance.has_news() {
            self.welcome();
        }
        if !self.leaving.is_empty() {
            self.tend();
        }
        self.has_let_go = false; // who wants to know looks now
        let mut told = 0;
        let mut strangers = Vec::new();
        self.eps.each(|id, (ep, _)| {
            if ep.is_over {
                return;
            }
            match ep.progress(id, sink) {
                Ok(count) => {
                    told += count;
                    ep.give_credits();
                }
                Err(_) if ep.is_unknown() => strangers.push(id),
                Err(why) => {
                    ep.is_over = true;
                    sink.gone(id, why);
                    told += 1;
                }
            }
        });
        for id in strangers {
            drop(self.eps.remove(id));
        }
        told
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn arm(&mut self) -> bool {
        self.is_armed = true;
        let mut idle = true;
        self.eps.each(|_, (ep, _)| idle &= ep.is_over || ep.may_sleep());
        self.leaving.retain_mut(|(leaving, _)| {
            let sleeps = leaving.may_sleep();
            idle &= sleeps.unwrap_or(true);
            self.has_let_go |= leaving.has_let_go(sleeps.is_none());
            sleeps.is_some()
        });
        let idle = idle && !self.has_let_go && !self.entrance.has_news();
        if !idle {
            self.disarm();
        }
        idle
    }
}

impl Drop for RcIface {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return; // the parent's
        }
        let limit = Deadline::after(LAST_WORDS);
        let mut leaving: Vec<_> = std::mem::take(&mut self.leaving);
        let mut last = |ep, life| leaving.push((Leaving::new(ep, Deadline::after(LAST_WORDS)), life));
        self.entrance.close().into_iter().for_each(|ep| last(ep, None));
        let ids = self.eps.ids();
        let eps = ids.into_iter().filter_map(|id| self.eps.remove(id)).filter(|(ep, _)| !ep.is_over);
        eps.for_each(|(ep, life)| last(ep, life));
        while limit.left().is_some() {
            leaving.retain_mut(|(leaving, _)| !leaving.is_done());
            if leaving.is_empty() {
                break;
            }
            thread::yield_now();
        }
    }
}
