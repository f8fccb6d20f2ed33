//! Who uses which page of the pool.

use crate::step::PageId;

/// Counts the users of every page.
#[derive(Debug)]
pub(super) struct PagePool {
    users: Vec<u32>,
    free: Vec<PageId>,
}

impl PagePool {
    pub(super) fn new(pages: usize) -> Self {
        Self { users: vec![0; pages], free: (0..pages as PageId).rev().collect() }
    }

    pub(super) fn total(&self) -> usize {
        self.users.len()
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free page, which then has one user.
    pub(super) fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.users[page as usize] = 1;
        Some(page)
    }

    /// Adds a user to a page in use.
    pub(super) fn share(&mut self, page: PageId) {
        debug_assert!(self.users[page as usize] > 0);
        self.users[page as usize] += 1;
    }

    /// Users of a page.
    pub(super) fn users(&self, page: PageId) -> u32 {
        self.users[page as usize]
    }

    /// Takes a user off a page; with the last one it is free.
    pub(super) fn release(&mut self, page: PageId) {
        let users = &mut self.users[page as usize];
        debug_assert!(*users > 0);
        *users -= 1;
        if *users == 0 {
            self.free.push(page);
        }
    }
}
