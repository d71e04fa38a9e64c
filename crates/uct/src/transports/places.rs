//! Endpoints of an interface, by their number.

use crate::api::EpId;

/// A list whose places are used again, under another generation.
#[derive(Debug)]
pub(super) struct Places<T> {
    all: Vec<Place<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Place<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Places<T> {
    pub(super) fn new() -> Self {
        Self { all: Vec::new(), free: Vec::new() }
    }

    pub(super) fn add(&mut self, value: T) -> EpId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.all.push(Place { generation: 0, value: None });
            u32::try_from(self.all.len() - 1).unwrap_or(u32::MAX)
        });
        let place = &mut self.all[index as usize];
        place.value = Some(value);
        EpId { index, generation: place.generation }
    }

    pub(super) fn remove(&mut self, id: EpId) -> Option<T> {
        let place = self.all.get_mut(id.index as usize).filter(|place| place.generation == id.generation)?;
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(id.index);
        Some(value)
    }

    #[inline]
    pub(super) fn get(&mut self, id: EpId) -> Option<&mut T> {
        let place = self.all.get_mut(id.index as usize)?;
        if place.generation == id.generation { place.value.as_mut() } else { None }
    }

    /// The numbers of all that are there.
    #[cfg(feature = "verbs")]
    pub(super) fn ids(&self) -> Vec<EpId> {
        let places = (0..).zip(&self.all).filter(|(_, place)| place.value.is_some());
        places.map(|(index, place)| EpId { index, generation: place.generation }).collect()
    }

    /// Whatever has that place now.
    #[cfg(any(feature = "shm", test))]
    pub(super) fn at(&self, index: u32) -> Option<&T> {
        self.all.get(index as usize)?.value.as_ref()
    }

    #[cfg(any(feature = "shm", feature = "verbs", test))]
    #[inline]
    pub(super) fn each(&mut self, mut f: impl FnMut(EpId, &mut T)) {
        for (index, place) in self.all.iter_mut().enumerate() {
            if let Some(value) = &mut place.value {
                #[allow(clippy::cast_possible_truncation)] // places are numbered by u32
                f(EpId { index: index as u32, generation: place.generation }, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_number_finds_nothing() {
        let mut places = Places::new();
        let (a, b) = (places.add('a'), places.add('b'));
        assert_eq!(places.get(a).copied(), Some('a'));
        assert_eq!(places.at(1), Some(&'b'));
        assert_eq!(places.remove(a), Some('a'));
        assert_eq!((places.remove(a), places.get(a).copied()), (None, None));
        assert_eq!(places.at(0), None);
        let c = places.add('c');
        assert_eq!((c.index, c.generation), (0, 1));
        assert_eq!(places.get(a).copied(), None);
        assert_eq!(places.get(c).copied(), Some('c'));
        let mut seen = Vec::new();
        places.each(|id, value| seen.push((id, *value)));
        assert_eq!(seen, [(c, 'c'), (b, 'b')]);
        assert_eq!(places.get(EpId { index: 9, generation: 0 }), None);
    }
}
