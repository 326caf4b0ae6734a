//! Access to a directory tree that never follows symbolic links.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    self as raw, AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, fsync, mkdirat, openat,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::store::usage::{MAX_AGENT_ENTRIES, Usage};

/// The longest name of a file, in bytes.
pub(super) const MAX_NAME: usize = 255;
/// The deepest directory of a key.
pub(super) const MAX_DEPTH: usize = 100;
/// The prefix of files that are being written; keys never begin with it.
const TEMPORARY: &str = ".tmp-";
/// Older files with this prefix were left by a process that died.
const STALE_AFTER: Duration = Duration::from_secs(3600);

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Opens a directory that is not a link.
pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, DIRECTORY, Mode::empty())?)
}

/// Opens a directory in a directory.
pub(super) fn enter(at: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    Ok(openat(at, name, DIRECTORY, Mode::empty())?)
}

/// The same; creates the directory for its owner only if it does not exist. Returns whether it did.
pub(super) fn open_or_create(at: BorrowedFd<'_>, name: &str) -> io::Result<(OwnedFd, bool)> {
    let made = match mkdirat(at, name, Mode::RWXU) {
        Ok(()) => {
            fsync(at)?;
            true
        }
        Err(Errno::EXIST) => false,
        Err(error) => return Err(error.into()),
    };
    Ok((enter(at, name)?, made))
}

/// The length of a file; `None` if there is none, an error if it is anything else.
pub(super) fn size(at: BorrowedFd<'_>, name: &str) -> io::Result<Option<u64>> {
    match statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => regular_size(&stat).map(Some),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn regular_size(stat: &raw::Stat) -> io::Result<u64> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Replaces a file atomically; on disk when it returns.
pub(super) fn replace(at: BorrowedFd<'_>, name: &str, text: &[u8]) -> io::Result<()> {
    let (mut file, temporary) = temporary(at)?;
    let renamed = file
        .write_all(text)
        .and_then(|()| file.sync_all())
        .and_then(|()| Ok(renameat(at, temporary.as_str(), at, name)?));
    if let Err(error) = renamed {
        // Files that cannot be removed now are removed by a later measurement.
        let _left = unlinkat(at, temporary.as_str(), AtFlags::empty());
        return Err(error);
    }
    Ok(fsync(at)?)
}

/// A new file under an unused name.
fn temporary(at: BorrowedFd<'_>) -> io::Result<(File, String)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // A fresh state is random.
    let name = format!(
        "{TEMPORARY}{:016x}",
        RandomState::new().build_hasher().finish()
    );
    let file = openat(at, name.as_str(), flags, Mode::RUSR | Mode::WUSR)?;
    Ok((file.into(), name))
}

/// Reads a file of at most this many bytes.
pub(super) fn read(at: BorrowedFd<'_>, name: &str, max: usize) -> io::Result<Vec<u8>> {
    // Opening does not block if the name is a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(at, name, flags, Mode::empty())?;
    let size = regular_size(&fstat(&file)?)?;
    if size > max as u64 {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    let mut text = Vec::new();
    File::from(file).take(max as u64).read_to_end(&mut text)?;
    Ok(text)
}

/// Adds up the files below a directory, and removes incomplete ones.
pub(super) fn measure(directory: OwnedFd, usage: &mut Usage) -> io::Result<()> {
    measure_below(directory, usage, MAX_DEPTH)
}

fn measure_below(directory: OwnedFd, usage: &mut Usage, depth: usize) -> io::Result<()> {
    let mut entries = Dir::new(directory)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if usage.entries > MAX_AGENT_ENTRIES {
            // Other kinds are not distinguished.
            return Ok(());
        }
        let at = entries.fd()?;
        let stat = match statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            // Removed meanwhile.
            Err(Errno::NOENT) => continue,
            stat => stat?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                if name.to_bytes().starts_with(TEMPORARY.as_bytes()) && is_stale(&stat) {
                    unlinkat(at, name, AtFlags::empty())?;
                    continue;
                }
                usage.bytes = usage.bytes.saturating_add(regular_size(&stat)?);
            }
            FileType::Directory => {
                let below = depth
                    .checked_sub(1)
                    .ok_or_else(|| io::Error::other("directories are nested too deeply"))?;
                match openat(at, name, DIRECTORY, Mode::empty()) {
                    Ok(directory) => measure_below(directory, usage, below)?,
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                    Err(error) => return Err(error.into()),
                }
            }
            _ => {}
        }
        usage.entries += 1;
    }
    Ok(())
}

fn is_stale(stat: &raw::Stat) -> bool {
    let modified = u64::try_from(stat.st_mtime).unwrap_or(0);
    let modified = UNIX_EPOCH.checked_add(Duration::from_secs(modified));
    let age = modified.and_then(|modified| SystemTime::now().duration_since(modified).ok());
    age.is_some_and(|age| age >= STALE_AFTER)
}
