//! One importer's connection, on the exporter's side.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};
use ucs::mem::{Access, ForeignFdError, Mapping, Memfd};

use super::arrivals::{Arrival, Arrivals, Entrance};
use super::placing::{Domain, Placement, Placers};
use super::shares::Share;
use super::sys;
use super::wire::{
    Introduction, MAX_FDS, Message, PlacedKeys, Placing, REPLY_LEN, REQUEST_LEN, Reply, Request, Verdict,
};
use crate::export::ExportTable;
use crate::export::Refusal;
use crate::export::importers::ImporterPage;
use crate::memory::LocalMem;
use crate::process::Process;

/// Placements of one export for one importer, at once.
const MAX_PLACEMENTS: usize = 8;

/// Whether a process of this user is at the other end (SO_PEERCRED, `unix(7)`).
fn is_same_user(socket: &OwnedFd) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(socket);
    peer.is_ok_and(|peer| is_user(peer.uid.as_raw(), rustix::process::geteuid().as_raw(), nobody()))
}

/// Whether `peer` is `me`. Users of other user namespaces, whoever they are, are seen as `nobody`: who runs as that cannot tell.
fn is_user(peer: u32, me: u32, nobody: u32) -> bool {
    peer == me && me != nobody
}

/// Who stands for users that have no number here: `/proc/sys/kernel/overflowuid`, `user_namespaces(7)`; 65534 unless it was changed.
fn nobody() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(65_534)
}

/// An importer's connection.
#[derive(Debug)]
pub(super) struct Conn {
    socket: OwnedFd,
    /// Its process, until its page has it.
    process: Option<Process>,
    page: Option<Arc<ImporterPage>>,
    /// What was placed for it, by export.
    placements: Vec<PlacedHere>,
    /// Which process it comes from: equal for equal processes.
    pub(super) peer: u64,
    /// When it came; it must show a token soon.
    pub(super) since: Instant,
    /// Whether it has shown a token.
    pub(super) proven: bool,
    /// Whether it is listened to no more.
    pub(super) muted: bool,
}

/// What becomes of a connection after a step.
#[derive(Debug)]
pub(super) enum Next {
    Keep,
    /// It is a worker's now: its place there, the memory both share, and the context at its other end.
    HandOver(Arc<Entrance>, Share, Mapping, [u8; 16]),
    /// It has shown no token: it goes.
    Close,
    /// It has shown a token and now misbehaves: it is listened to no more. It is not closed, since its end would tell its
    /// process that the exporter is gone, and this exporter that the process accesses nothing any more.
    Mute,
}

/// A registration of an export's memory in a domain of the peer's.
#[derive(Debug)]
struct PlacedHere {
    id: u64,
    /// That of the message which asked for it. The kernel's number would not do: it is another's once this has ended.
    sequence: u32,
    placement: Arc<dyn Placement>,
}

impl Conn {
    pub(super) fn new(socket: OwnedFd, process: Option<Process>, peer: u64) -> Self {
        Self {
            socket,
            process,
            page: None,
            placements: Vec::new(),
            peer,
            since: Instant::now(),
            proven: false,
            muted: false,
        }
    }

    /// Ends what it has: its importer accesses nothing any more.
    pub(super) fn end(self, exports: &ExportTable) {
        for PlacedHere { id, placement, .. } in &self.placements {
            exports.remove_placement(*id, placement);
        }
        if let Some(page) = &self.page {
            exports.remove_page(page);
        }
    }

    /// Whether its other end is closed: a message of no bytes looks the same to `recv(2)`.
    fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..) | Err(_))
    }

    /// What becomes of it after a message that is none, or a reply it does not take.
    fn misbehaves(&self) -> Next {
        if self.proven { Next::Mute } else { Next::Close }
    }

    /// Answers one message, if one is there. Never blocks: a peer that does not take its reply has no more.
    pub(super) fn step(&mut self, exports: &ExportTable, arrivals: &Arrivals, placers: &Placers) -> Next {
        let mut bytes = [0; REQUEST_LEN + 1];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let (received, is_cut) = match recvmsg(&self.socket, &mut parts, &mut control, flags) {
            Ok(received) if received.bytes == 0 && self.has_ended() => return Next::Close,
            Ok(received) => (received.bytes, received.flags.contains(ReturnFlags::CTRUNC)),
            Err(Errno::AGAIN | Errno::INTR) => return Next::Keep,
            Err(_) => return Next::Close,
        };
        // Whatever came along is closed, but for the first descriptor of an introduction, or of a placing.
        let passed = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        match Message::decode(bytes.get(..received).unwrap_or_default()) {
            Ok(Message::Attach(request)) => self.answer(&request, exports),
            // A descriptor has come, and this process could not have it (`unix(7)`, MSG_CTRUNC).
            Ok(Message::Place(asked)) if is_cut && passed.is_none() && self.page.is_some() => {
                self.send(&Reply::without(Verdict::NoResource, asked.sequence), &[])
            }
            Ok(Message::Place(asked)) => self.place(&asked, passed, exports, placers),
            Ok(Message::Unplace(sequence)) => {
                if let Some(at) = self.placements.iter().position(|placed| placed.sequence == sequence) {
                    let PlacedHere { id, placement, .. } = self.placements.swap_remove(at);
                    exports.remove_placement(id, &placement);
                }
                Next::Keep
            }
            // As above.
            Ok(Message::Connect(asked)) if is_cut && passed.is_none() && !self.proven => {
                let _ = self.send(&Reply::without(Verdict::NoResource, asked.sequence), &[]);
                Next::Close
            }
            Ok(Message::Connect(asked)) => self.introduce(&asked, passed, exports, arrivals),
            Err(error) => {
                tracing::debug!(%error, "a message that is none on the service socket");
                self.misbehaves()
            }
        }
    }

    /// Answers a worker that asks for one of ours. It has a connection for that alone.
    fn introduce(
        &mut self,
        asked: &Introduction,
        memory: Option<OwnedFd>,
        exports: &ExportTable,
        arrivals: &Arrivals,
    ) -> Next {
        if self.proven {
            return self.misbehaves();
        }
        let found = if asked.uuid == *exports.uuid() {
            arrivals.find(asked.worker, &asked.token)
        } else {
            Err(Refusal::Stale)
        };
        // Its share first: who has no more of them costs no mapping.
        let found = found.map_err(Verdict::Refused).and_then(|entrance| {
            entrance.share(self.peer).map(|share| (entrance, share)).ok_or(Verdict::TooMany)
        });
        let (entrance, share) = match found {
            Ok(found) => found,
            Err(verdict) => {
                let _ = self.send(&Reply::without(verdict, asked.sequence), &[]);
                return Next::Close;
            }
        };
        let shared = memory
            .filter(|_| asked.length == entrance.length() as u64)
            .map(|fd| Memfd::map_foreign(fd.as_fd(), entrance.length(), Access::ReadWrite));
        let (verdict, shared) = match shared {
            Some(Ok(shared)) if entrance.has_room() => (Verdict::Granted, Some(shared)),
            Some(Ok(_)) => (Verdict::NoResource, None),
            Some(Err(error)) => {
                tracing::debug!(%error, "a worker's memory cannot be mapped");
                let mine = matches!(error, ForeignFdError::Mem(_));
                (if mine { Verdict::NoResource } else { Verdict::Refused(Refusal::Mismatch) }, None)
            }
            None => (Verdict::Refused(Refusal::Mismatch), None),
        };
        match (self.send(&Reply::without(verdict, asked.sequence), &[]), shared) {
            (Next::Keep, Some(shared)) => Next::HandOver(entrance, share, shared, asked.from),
            _ => Next::Close,
        }
    }

    /// Registers memory of an export in a domain of the importer's, which has shown the export's token on this connection, and has its page:
    /// by that its accesses are told.
    fn place(
        &mut self,
        asked: &Placing,
        command: Option<OwnedFd>,
        exports: &ExportTable,
        placers: &Placers,
    ) -> Next {
        let (Some(command), Some(page)) = (command, &self.page) else { return self.misbehaves() };
        let refuse = |verdict| Reply::without(verdict, asked.sequence);
        let _making = exports.making(asked.claim.id);
        let verified =
            if asked.uuid == *exports.uuid() { exports.verify(&asked.claim) } else { Err(Refusal::Stale) };
        let mem = match verified {
            Ok(mem) => mem,
            Err(refusal) => return self.send(&refuse(Verdict::Refused(refusal)), &[]),
        };
        let id = asked.claim.id;
        self.placements.retain(|placed| exports.has_placement(&placed.placement));
        let verdict = if !is_same_user(&self.socket) {
            Err(Verdict::NotPlaced)
        } else if self.placements.iter().filter(|placed| placed.id == id).count() >= MAX_PLACEMENTS {
            Err(Verdict::TooMany)
        } else {
            let domain = Domain { command, number: asked.domain };
            match placers.place(&domain, page.pid(), &mem) {
                None => Err(Verdict::NotPlaced),
                Some(Ok(placed)) => Ok(placed),
                Some(Err(why)) => {
                    tracing::warn!(why, "exported memory cannot be registered for an importer");
                    Err(Verdict::NoResource)
                }
            }
        };
        exports.let_go(mem);
        match verdict {
            Err(verdict) => self.send(&refuse(verdict), &[]),
            Ok(placed) if exports.add_placement(&asked.claim, &placed.placement) => {
                let (lkey, rkey, handle) = (placed.lkey, placed.rkey, placed.handle);
                let sequence = asked.sequence;
                self.placements.push(PlacedHere { id, sequence, placement: placed.placement });
                let keys = PlacedKeys { sequence, lkey, rkey, handle };
                self.send_bytes(&keys.encode(), &[]).map_or_else(|_| self.misbehaves(), |()| Next::Keep)
            }
            // Revoked meanwhile.
            Ok(_) => self.send(&refuse(Verdict::Refused(Refusal::Stale)), &[]),
        }
    }

    /// The connection, for a worker to keep.
    pub(super) fn into_arrival(self, memory: Mapping, from: [u8; 16], share: Share) -> Arrival {
        Arrival { socket: self.socket, process: self.process, memory, from, share }
    }

    fn answer(&mut self, request: &Request, exports: &ExportTable) -> Next {
        let refuse = |verdict| Reply::without(verdict, request.sequence);
        let verified = if request.uuid == *exports.uuid() {
            exports.verify(&request.claim)
        } else {
            Err(Refusal::Stale)
        };
        let mem = match verified {
            Ok(mem) => mem,
            Err(refusal) => {
                // A wrong token is answered once: guessing costs a connection each.
                let sent = self.send(&refuse(Verdict::Refused(refusal)), &[]);
                return if self.proven { sent } else { Next::Close };
            }
        };
        self.proven = true;
        let next =
            self.grant(request, exports, &mem).unwrap_or_else(|verdict| self.send(&refuse(verdict), &[]));
        exports.let_go(mem);
        next
    }

    /// Sends the descriptors that are wanted, or says why there are none.
    fn grant(
        &mut self,
        request: &Request,
        exports: &ExportTable,
        mem: &Arc<LocalMem>,
    ) -> Result<Next, Verdict> {
        let memory = if request.want_memory { Some(mem.file().ok_or(Verdict::NoDescriptor)?) } else { None };
        let reply = Reply {
            sequence: request.sequence,
            verdict: Verdict::Granted,
            rights: mem.rights(),
            length: mem.len() as u64,
            fds: u32::try_from(request.fds()).map_err(|_| Verdict::NoResource)?,
        };
        if sys::unread_bytes(self.socket.as_fd()) != Some(0) {
            return Ok(self.misbehaves()); // it asks again before it has taken its last reply: descriptors would pile up
        }
        let mut fds: Vec<BorrowedFd<'_>> = memory.iter().map(AsFd::as_fd).collect();
        if !request.want_control {
            Self::grant_to(self.page.as_ref().ok_or(Verdict::NoResource)?, request, exports);
            return Ok(self.send(&reply, &fds));
        }
        if self.page.is_some() {
            return Err(Verdict::NoResource); // it has its page: one a connection
        }
        let (page, file) = ImporterPage::create(&mut self.process).map_err(|_| Verdict::NoResource)?;
        let page = Arc::new(page);
        let table = exports.table_file().ok_or(Verdict::NoResource)?;
        exports.add_page(&page);
        Self::grant_to(&page, request, exports);
        self.page = Some(page);
        fds.extend([table.as_fd(), file.as_fd()]);
        Ok(self.send(&reply, &fds))
    }

    fn grant_to(page: &ImporterPage, request: &Request, exports: &ExportTable) {
        // Revoked meanwhile: nobody else would forget it. But what was granted before stays: an access may be in flight, and whoever
        // revokes waits for it.
        if page.grant(request.claim.id) && exports.verify(&request.claim).is_err() {
            page.forget(request.claim.id);
        }
    }

    /// Tells a connection that is not taken.
    pub(super) fn refuse(socket: OwnedFd) {
        let conn = Self::new(socket, None, 0);
        let _ = conn.send(&Reply::without(Verdict::NoResource, 0), &[]);
        conn.shut_down();
    }

    /// Ends it for all who have it open, a fork's child included.
    pub(super) fn shut_down(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    fn send(&self, reply: &Reply, fds: &[BorrowedFd<'_>]) -> Next {
        match self.send_bytes(&reply.encode(), fds) {
            Ok(()) => Next::Keep,
            // Too many descriptors of this user are on their way, or there is no memory: not this peer's fault.
            Err(Errno::TOOMANYREFS | Errno::NOMEM | Errno::NOBUFS) if !fds.is_empty() => {
                self.send(&Reply::without(Verdict::NoResource, reply.sequence), &[])
            }
            Err(_) => self.misbehaves(),
        }
    }

    fn send_bytes(&self, bytes: &[u8; REPLY_LEN], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ucs::mem::{Access, Memfd};
    use ucs::sync::Ordering;

    use super::*;
    use crate::export::wire;
    use crate::memory::Rights;

    /// Two imports of one export share a connection. One of them asks when the export is being revoked, and is refused: that must not
    /// have the access of the other forgotten, which the revocation waits for.
    #[test]
    fn a_refused_second_import_leaves_the_first_one_s_accesses_known() {
        let exports = Arc::new(ExportTable::new(Duration::from_millis(20)).unwrap());
        let mem = Arc::new(LocalMem::anonymous(4096, Rights::READ_WRITE).unwrap());
        let export = exports.publish(&mem).unwrap();
        let (page, file) = ImporterPage::create(&mut None).unwrap();
        let page = Arc::new(page);
        exports.add_page(&page);
        let (uuid, claim) = (*exports.uuid(), *export.claim());
        let request = Request { sequence: 1, want_control: false, want_memory: false, uuid, claim };
        Conn::grant_to(&page, &request, &exports);
        // The importer is inside.
        let its = Memfd::map_foreign(file.as_fd(), wire::SLOTS_LEN, Access::ReadWrite).unwrap();
        wire::announced(its.bytes(), 3).unwrap().store(claim.id, Ordering::Release);
        assert!(export.revoke().is_err(), "an access is in flight");
        Conn::grant_to(&page, &request, &exports);
        assert!(export.revoke().is_err(), "and still is");
        wire::announced(its.bytes(), 3).unwrap().store(0, Ordering::Release);
        export.revoke().unwrap();
    }

    #[test]
    fn the_user_that_stands_for_all_others_is_nobody_s_own() {
        assert!(is_user(1000, 1000, 65_534) && is_user(0, 0, 65_534));
        assert!(!is_user(1000, 0, 65_534));
        assert!(!is_user(65_534, 65_534, 65_534), "perhaps of another user namespace");
        assert!(is_user(65_534, 65_534, 7), "where another one stands for them");
    }

    /// One that is granted for the first time while it is being revoked is forgotten: nobody else would.
    #[test]
    fn what_was_revoked_before_it_was_granted_is_forgotten() {
        let exports = Arc::new(ExportTable::new(Duration::from_millis(20)).unwrap());
        let mem = Arc::new(LocalMem::anonymous(4096, Rights::READ_WRITE).unwrap());
        let export = exports.publish(&mem).unwrap();
        let (page, _file) = ImporterPage::create(&mut None).unwrap();
        let (uuid, claim) = (*exports.uuid(), *export.claim());
        export.revoke().unwrap();
        let request = Request { sequence: 1, want_control: false, want_memory: false, uuid, claim };
        Conn::grant_to(&page, &request, &exports);
        assert!(page.grant(claim.id), "it is not known");
    }
}
