//! Regions as streams.

use std::io;

use super::Region;

/// Reads a region from its beginning to its end.
#[derive(Debug)]
pub struct RegionReader<'a> {
    region: &'a Region,
    offset: usize,
}

/// Writes a region from its beginning to its end; then it accepts no more bytes, as a slice does.
#[derive(Debug)]
pub struct RegionWriter<'a> {
    region: &'a Region,
    offset: usize,
}

impl<'a> RegionReader<'a> {
    pub(super) fn new(region: &'a Region) -> Self {
        Self { region, offset: 0 }
    }
}

impl<'a> RegionWriter<'a> {
    pub(super) fn new(region: &'a Region) -> Self {
        Self { region, offset: 0 }
    }
}

impl io::Read for RegionReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = buf.len().min(self.region.len() - self.offset);
        self.region.read(self.offset as u64, &mut buf[..len]).map_err(io::Error::other)?;
        self.offset += len;
        Ok(len)
    }
}

impl io::Write for RegionWriter<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let len = buf.len().min(self.region.len() - self.offset);
        self.region.write(self.offset as u64, &buf[..len]).map_err(io::Error::other)?;
        self.offset += len;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
