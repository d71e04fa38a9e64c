//! The threads: each changes memory at addresses that others use as well, and looks through the cache at what is there now.
//!
//! ```text
//! places      hole ─ claimed by whoever is first ─ used ─ unmapped or moved away: a hole again, before its event is read
//! board       | part of thread 1 | part of thread 2 | part of thread 3 |  one mapping, often registered as a whole
//! heap        | head: a page a thread | tail: given up and taken again by whoever is first |
//! home        of one thread: moved away and back, shrunk and grown
//! bystanders  of one thread: only looked at, never changed
//! blocks      of malloc(3)
//! ```
//!
//! Each word is used by one thread at a time, who knows what is mapped there: whatever the NIC sees other than that is wrong.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ucs::mem::page::page_size;

use super::Pattern;
use super::schemes::Announce;
use super::sys::{Arena, Block, Held, Hole, Room, Zap};
use super::world::{Look, Region, Way, World, count, tag};
use uct_conformance::nic::Mr;

/// Pages of a place, and of all that is moved about.
const PAGES: usize = 4;
/// Pages of a thread's part of the board.
const PART: usize = 2;
/// Places, for any number of threads: few, so that they are wanted.
const PLACES: usize = 3;
/// Bystanders of a thread.
const BYSTANDERS: usize = 4;
/// How often a place is tried to be claimed before something else is done.
const CLAIMS: u32 = 64;

/// A small generator (splitmix64).
#[derive(Debug)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap_or(0)
    }

    fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }
}

/// What all threads change.
#[derive(Debug)]
struct Shared {
    places: Vec<Hole>,
    /// Address and length of all parts together.
    board: (usize, usize),
    /// The end of the heap, where it is not mapped.
    tail: Hole,
    /// Address and length of the heap with its tail.
    heap: (usize, usize),
}

/// One thread's.
#[derive(Debug)]
pub(super) struct Worker {
    world: Arc<World>,
    shared: Arc<Shared>,
    patterns: Vec<Pattern>,
    rng: Rng,
    number: usize,
    tags: u64,
    /// Of the board.
    part: Held,
    /// Of the heap: a page.
    head: Held,
    home: Option<Held>,
    rooms: Vec<Room>,
    bystanders: Vec<(Held, Option<Mr>)>,
    /// Rounds.
    pub(super) rounds: Arc<AtomicU64>,
}

/// Makes the threads' memory.
///
/// # Errors
/// The kernel's.
pub(super) fn workers(
    world: &Arc<World>,
    threads: usize,
    patterns: &[Pattern],
    seed: u64,
) -> io::Result<Vec<Worker>> {
    let page = page_size();
    let each = (PAGES + 1) * (3 + BYSTANDERS) + PART + 1;
    let mut arena = Arena::new(page * (PLACES * (PAGES + 1) + threads * each + 2 * PAGES + 16))?;
    let places = (0..PLACES).map(|_| arena.room(PAGES * page).open()).collect::<io::Result<_>>()?;
    let board = arena.room(threads * PART * page);
    let board_span = (board.range().start(), board.range().len());
    let mut parts = board.map()?.cut(PART * page);
    let (head, tail) = arena.room((threads + PAGES) * page).split(threads * page);
    let heap = (head.range().start(), head.range().len() + tail.range().len());
    let mut heads = head.map()?.cut(page);
    let shared = Arc::new(Shared { places, board: board_span, tail: tail.open()?, heap });
    let mut workers = Vec::new();
    for number in 0..threads {
        let (Some(part), Some(head)) = (parts.pop(), heads.pop()) else { break };
        let bystanders = (0..BYSTANDERS).map(|_| Ok((arena.room(PAGES * page).map()?, None)));
        workers.push(Worker {
            world: Arc::clone(world),
            shared: Arc::clone(&shared),
            patterns: patterns.to_vec(),
            rng: Rng(seed ^ (number as u64).wrapping_mul(0x5851_f42d_4c95_7f2d)),
            number,
            tags: 0,
            part,
            head,
            bystanders: bystanders.collect::<io::Result<_>>()?,
            home: Some(arena.room(PAGES * page).map()?),
            rooms: vec![arena.room(PAGES * page), arena.room(PART * page)],
            rounds: Arc::default(),
        });
    }
    Ok(workers)
}

impl Worker {
    /// Goes on until it is told to stop.
    ///
    /// # Errors
    /// Memory could not be changed.
    pub(super) fn run(mut self) -> io::Result<()> {
        while !self.world.is_over() {
            let pattern = self.patterns[self.rng.below(self.patterns.len())];
            match pattern {
                Pattern::All => {}
                Pattern::Remap | Pattern::Madvise | Pattern::Mremap if self.rng.one_in(3) => {
                    self.board(pattern)?;
                }
                Pattern::Remap | Pattern::Madvise => self.place(pattern)?,
                Pattern::Mremap if self.rng.one_in(2) => self.home(pattern)?,
                Pattern::Mremap => self.place(pattern)?,
                Pattern::Brk if self.rng.one_in(2) => self.block(pattern, false),
                Pattern::Brk => self.heap(pattern)?,
                Pattern::Malloc => self.block(pattern, true),
            }
            self.bystander(pattern);
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn tag(&mut self) -> u64 {
        self.tags += 1;
        tag(self.number, self.tags)
    }

    /// An operation on any word of `held`, by a registration of the `span` or of a part of `held`.
    fn look(&mut self, pattern: Pattern, held: &Held, span: Option<(usize, usize)>) -> Region {
        let at = self.rng.below(held.len() / 8) * 8;
        let span = span.unwrap_or_else(|| {
            if self.rng.one_in(4) {
                // Some of it.
                (held.address(at), 8)
            } else {
                (held.address(0), held.len())
            }
        });
        let way = if self.rng.one_in(2) { Way::In } else { Way::Out };
        let late = self.rng.one_in(4);
        let read_only = self.rng.one_in(4);
        let tag = self.tag();
        self.world.look(&Look { pattern, held, at, tag, way, span, late, as_is: false, read_only })
    }

    fn looks(&mut self, pattern: Pattern, held: &Held, span: Option<(usize, usize)>) {
        for _ in 0..3 {
            self.look(pattern, held, span);
        }
    }

    /// What was written before has to be seen, by a registration of all of it.
    fn look_as_is(&mut self, pattern: Pattern, held: &Held) {
        let at = self.rng.below(held.len() / 8) * 8;
        let span = (held.address(0), held.len());
        let (tag, way) = (0, Way::Out);
        let look = Look {
            pattern,
            held,
            at,
            tag,
            way,
            span,
            late: false,
            as_is: true,
            read_only: self.rng.one_in(2),
        };
        self.world.look(&look);
    }

    fn fill(&mut self, held: &Held) {
        for at in (0..held.len()).step_by(8) {
            let tag = self.tag();
            held.write(at, tag);
        }
    }

    fn change<T>(&self, ranges: &[ucs::mem::page::PageRange], change: impl FnOnce() -> T) -> T {
        count(&self.world.tally.changes);
        self.world.announce.around(ranges, change)
    }

    /// Claims a place that all want, uses it, and gives it up. Whoever is next has it before the cache is told.
    fn place(&mut self, pattern: Pattern) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let place = &shared.places[self.rng.below(shared.places.len())];
        let Some(mut held) = self.claim(place)? else { return Ok(()) };
        self.looks(pattern, &held, None);
        for _ in 0..self.rng.below(3) {
            let range = [held.range()];
            match pattern {
                Pattern::Madvise => {
                    let how = self.zap();
                    self.change(&range, || zap(&mut held, how))?;
                }
                Pattern::Mremap if self.rng.one_in(2) => {
                    self.change(&range, || held.shrink_and_grow())?;
                }
                Pattern::Mremap => self.exchange(&mut held)?,
                _ => {
                    let half = held.len() / 2;
                    let (at, len) = [(0, 2 * half), (0, half), (half, half)][self.rng.below(3)];
                    self.change(&range, || held.map_over(at, len))?;
                }
            }
            self.looks(pattern, &held, None);
        }
        let range = [held.range()];
        if pattern != Pattern::Mremap {
            return self.change(&range, || held.unmap());
        }
        // Its pages go elsewhere, and are seen there.
        self.fill(&held);
        let Some(room) = self.take_room(held.len()) else { return self.change(&range, || held.unmap()) };
        let ranges = [range[0], room.range()];
        match self.change(&ranges, || held.move_away(room))? {
            Ok(held) => {
                self.look_as_is(pattern, &held);
                self.looks(pattern, &held, None);
                let range = [held.range()];
                let room = self.change(&range, || held.leave())?;
                self.rooms.push(room);
                Ok(())
            }
            Err((held, room)) => {
                self.rooms.push(room);
                self.change(&range, || held.unmap())
            }
        }
    }

    fn claim(&mut self, hole: &Hole) -> io::Result<Option<Held>> {
        for _ in 0..CLAIMS {
            if let Some(held) = hole.claim()? {
                return Ok(Some(held));
            }
            if self.world.is_over() {
                break;
            }
            std::hint::spin_loop();
        }
        Ok(None)
    }

    /// A room of that size.
    fn take_room(&mut self, len: usize) -> Option<Room> {
        let at = self.rooms.iter().position(|room| room.range().len() == len)?;
        Some(self.rooms.swap_remove(at))
    }

    /// Pages go out of it and others come, by mremap.
    fn exchange(&mut self, held: &mut Held) -> io::Result<()> {
        let Some(room) = self.take_room(held.len()) else { return Ok(()) };
        let ranges = [held.range(), room.range()];
        if self.rng.one_in(2) {
            let (room, moved) = self.change(&ranges, || held.move_pages_out(room));
            self.rooms.push(room);
            // Linux before 5.7, or several mappings.
            return moved.or_else(|_| self.change(&ranges[..1], || held.map_over(0, held.len())));
        }
        let fresh = room.map()?;
        self.fill(&fresh);
        let room = self.change(&ranges, || fresh.move_onto(held))?;
        self.rooms.push(room);
        self.look_as_is(Pattern::Mremap, held);
        Ok(())
    }

    fn zap(&mut self) -> Zap {
        [Zap::DontNeed, Zap::DontNeed, Zap::Locked, Zap::Free][self.rng.below(4)]
    }

    /// Changes this thread's part of a mapping which others register with theirs.
    fn board(&mut self, pattern: Pattern) -> io::Result<()> {
        let board = Some(self.shared.board);
        for _ in 0..3 {
            let (how, range) = (self.zap(), [self.part.range()]);
            // Taken out for a while: the rest of this thread's is used meanwhile.
            let Worker { world, part, .. } = self;
            match pattern {
                Pattern::Madvise => world.announce.around(&range, || zap(part, how))?,
                Pattern::Mremap => self.exchange_part()?,
                _ => world.announce.around(&range, || part.map_over(0, range[0].len()))?,
            }
            count(&self.world.tally.changes);
            for _ in 0..3 {
                let span = if self.rng.one_in(2) { board } else { None };
                self.look_at_part(pattern, span);
            }
        }
        Ok(())
    }

    fn exchange_part(&mut self) -> io::Result<()> {
        let Some(room) = self.take_room(self.part.len()) else { return Ok(()) };
        let ranges = [self.part.range(), room.range()];
        let fresh = room.map()?;
        self.fill(&fresh);
        let Worker { world, part, rooms, .. } = self;
        rooms.push(world.announce.around(&ranges, || fresh.move_onto(part))?);
        Ok(())
    }

    fn look_at_part(&mut self, pattern: Pattern, span: Option<(usize, usize)>) {
        let tag = self.tag();
        let at = self.rng.below(self.part.len() / 8) * 8;
        let span = span.unwrap_or((self.part.address(0), self.part.len()));
        let way = if self.rng.one_in(2) { Way::In } else { Way::Out };
        let (late, read_only) = (self.rng.one_in(4), self.rng.one_in(4));
        let held = &self.part;
        self.world.look(&Look { pattern, held, at, tag, way, span, late, as_is: false, read_only });
    }

    /// A heap whose end is given up and taken again, while others use its beginning.
    fn heap(&mut self, pattern: Pattern) -> io::Result<()> {
        let (shared, heap) = (Arc::clone(&self.shared), Some(self.shared.heap));
        let Some(tail) = self.claim(&shared.tail)? else {
            // Somebody else has the tail, or had it just now.
            self.look_at_head(pattern, heap);
            self.look_at_head(pattern, None);
            return Ok(());
        };
        for _ in 0..2 {
            self.look(pattern, &tail, heap);
            self.look_at_head(pattern, heap);
            self.look(pattern, &tail, None);
        }
        let range = [tail.range()];
        self.change(&range, || tail.unmap())
    }

    fn look_at_head(&mut self, pattern: Pattern, span: Option<(usize, usize)>) {
        let tag = self.tag();
        let at = self.rng.below(self.head.len() / 8) * 8;
        let held = &self.head;
        let span = span.unwrap_or((held.address(0), held.len()));
        let (way, late) = (if self.rng.one_in(2) { Way::In } else { Way::Out }, false);
        self.world.look(&Look { pattern, held, at, tag, way, span, late, as_is: false, read_only: false });
    }

    /// Moves memory of this thread away and back.
    fn home(&mut self, pattern: Pattern) -> io::Result<()> {
        let Some(mut home) = self.home.take() else { return Ok(()) };
        if self.rng.one_in(3) {
            let range = [home.range()];
            self.change(&range, || home.shrink_and_grow())?;
            self.looks(pattern, &home, None);
        }
        self.fill(&home);
        self.look_as_is(pattern, &home);
        if let Some(room) = self.take_room(home.len()) {
            home = self.there_and_back(pattern, home, room)?;
        }
        self.home = Some(home);
        Ok(())
    }

    fn there_and_back(&mut self, pattern: Pattern, home: Held, room: Room) -> io::Result<Held> {
        let ranges = [home.range(), room.range()];
        let (away, empty) = match self.change(&ranges, || home.move_to(room))? {
            Ok(moved) => moved,
            // It was of several mappings, and has been made one again.
            Err((home, room)) => {
                self.rooms.push(room);
                return Ok(home);
            }
        };
        self.look_as_is(pattern, &away);
        self.looks(pattern, &away, None);
        // If it cannot go back, where it is now is its home.
        let (home, room) = self.change(&ranges, || away.move_to(empty))?.unwrap_or_else(|stays| stays);
        self.rooms.push(room);
        self.look_as_is(pattern, &home);
        self.looks(pattern, &home, None);
        Ok(home)
    }

    /// Allocates, uses and frees.
    fn block(&mut self, pattern: Pattern, large: bool) {
        // A small one goes back by shrinking the heap, of which only the kernel can tell.
        let large = large || self.world.announce != Announce::Nothing;
        let len =
            if large { (1 + self.rng.below(3)) * (160 << 10) } else { (1 + self.rng.below(4)) * (24 << 10) };
        let Some(block) = Block::new(len) else { return };
        for _ in 0..3 {
            let (at, tag) = (self.rng.below(len / 8) * 8, self.tag());
            self.world.look_at_block(&block, len, at, tag, pattern);
        }
        let range = ucs::mem::page::PageRange::containing(block.address(), len);
        let ranges = range.as_slice();
        self.change(ranges, || block.free());
    }

    /// Looks at memory that nobody changes: its first registration has to last.
    fn bystander(&mut self, pattern: Pattern) {
        let which = self.rng.below(self.bystanders.len());
        let tag = self.tag();
        let (held, registration) = &mut self.bystanders[which];
        let at = self.rng.below(held.len() / 8) * 8;
        let way = if self.rng.one_in(2) { Way::In } else { Way::Out };
        let span = (held.address(0), held.len());
        let (late, read_only) = (false, false);
        let look = Look { pattern, held, at, tag, way, span, late, as_is: false, read_only };
        let tally = &self.world.tally;
        count(&tally.bystander_operations);
        match (self.world.look(&look), &registration) {
            (Region::Cached(mr), Some(before)) if mr != *before => {
                count(&tally.bystander_lost);
                *registration = Some(mr);
            }
            (Region::Cached(mr), _) => *registration = Some(mr),
            (Region::OneShot, _) => count(&tally.bystander_one_shots),
            (Region::None, _) => {}
        }
    }
}

fn zap(held: &mut Held, how: Zap) -> io::Result<()> {
    held.drop_pages(how).or_else(|error| match how {
        // An older kernel.
        Zap::Locked => held.drop_pages(Zap::DontNeed),
        _ => Err(error),
    })
}
