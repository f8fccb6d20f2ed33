//! Prompts that were read, by content: a tree of blocks of [`PAGE_TOKENS`] tokens. Each node has the page that holds its block's
//! cells, and some have the recurrent state at the block's end, from which a prompt can go on.
//!
//! Only blocks that were read as prompt from an aligned start are kept here: their bits are those of a cold read, so whoever
//! goes on from them computes what it would have computed alone. A node is found by comparing every token of its block.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::pages::PagePool;
use crate::backend::StateImage;
use crate::step::{PAGE_TOKENS, PageId};

type NodeId = u64;
type Block = [u32; PAGE_TOKENS];

/// Parent of the first blocks.
const ROOT: NodeId = NodeId::MAX;

/// What is known of read prompts.
#[derive(Debug)]
pub(super) struct PrefixTree {
    nodes: HashMap<NodeId, Node>,
    /// A block's node, by the node before it.
    index: HashMap<(NodeId, Block), NodeId, RandomState>,
    next: NodeId,
    clock: u64,
    /// Bytes of states held, and the most that may be.
    state_bytes: usize,
    state_budget: usize,
}

#[derive(Debug)]
struct Node {
    parent: NodeId,
    block: Block,
    page: PageId,
    state: Option<Arc<StateImage>>,
    /// When the state was kept or gone on from.
    state_used: u64,
    children: usize,
    used: u64,
}

/// Where a prompt can go on.
#[derive(Debug)]
pub(super) struct Resume {
    /// Pages of the blocks before it, in order; the taker becomes their user.
    pub(super) pages: Vec<PageId>,
    /// State after them.
    pub(super) state: Arc<StateImage>,
}

impl PrefixTree {
    pub(super) fn new(state_budget: usize) -> Self {
        Self { nodes: HashMap::new(), index: HashMap::default(), next: 0, clock: 0, state_bytes: 0, state_budget }
    }

    /// Nodes of the blocks that `tokens` begins with, in order.
    fn path(&mut self, tokens: &[u32]) -> Vec<NodeId> {
        self.clock += 1;
        let (blocks, _) = tokens.as_chunks::<PAGE_TOKENS>();
        let mut path = Vec::new();
        let mut parent = ROOT;
        for block in blocks {
            let Some(&node) = self.index.get(&(parent, *block)) else { break };
            if let Some(node) = self.nodes.get_mut(&node) {
                node.used = self.clock;
            }
            path.push(node);
            parent = node;
        }
        path
    }

    /// Tokens at the beginning of `tokens` that stand here, with or without a state to go on from.
    pub(super) fn known(&mut self, tokens: &[u32]) -> usize {
        self.path(tokens).len() * PAGE_TOKENS
    }

    /// The deepest point inside `prompt`, before its last token, that can be gone on from.
    pub(super) fn resume(&mut self, prompt: &[u32], pages: &mut PagePool) -> Option<Resume> {
        let path = self.path(&prompt[..prompt.len() - 1]);
        let nodes = || path.iter().filter_map(|id| self.nodes.get(id));
        let depth = nodes().rposition_with_state()?;
        let shared: Vec<PageId> = nodes().take(depth + 1).map(|n| n.page).collect();
        let clock = self.clock;
        let node = self.nodes.get_mut(&path[depth])?;
        node.state_used = clock;
        let state = node.state.clone()?;
        shared.iter().for_each(|&page| pages.share(page));
        Some(Resume { pages: shared, state })
    }

    /// Takes in all whole blocks of `tokens`, whose cells are in `held`. Where a block stands here already, its page takes the
    /// place of the holder's own: the bits are the same.
    pub(super) fn insert(&mut self, tokens: &[u32], held: &mut [PageId], pages: &mut PagePool) {
        self.clock += 1;
        let (blocks, _) = tokens.as_chunks::<PAGE_TOKENS>();
        let mut parent = ROOT;
        for (block, held) in blocks.iter().zip(held) {
            if let Some(&id) = self.index.get(&(parent, *block)) {
                if let Some(node) = self.nodes.get(&id).filter(|n| n.page != *held) {
                    pages.share(node.page);
                    pages.release(*held);
                    *held = node.page;
                }
                parent = id;
                continue;
            }
            let id = self.next;
            self.next += 1;
            pages.share(*held);
            let node =
                Node { parent, block: *block, page: *held, state: None, state_used: 0, children: 0, used: self.clock };
            self.index.insert((parent, *block), id);
            self.nodes.insert(id, node);
            if let Some(parent) = self.nodes.get_mut(&parent) {
                parent.children += 1;
            }
            parent = id;
        }
    }

    /// How far a prompt can go on, in tokens.
    pub(super) fn reach(&mut self, prompt: &[u32]) -> usize {
        let path = self.path(&prompt[..prompt.len() - 1]);
        let nodes = path.iter().filter_map(|id| self.nodes.get(id));
        nodes.rposition_with_state().map_or(0, |depth| (depth + 1) * PAGE_TOKENS)
    }

    /// The states inside `tokens` (whole blocks), by their positions, in order.
    pub(super) fn states(&mut self, tokens: &[u32]) -> Vec<(usize, Arc<StateImage>)> {
        let path = self.path(tokens);
        let nodes = path.iter().filter_map(|id| self.nodes.get(id)).zip(1..);
        nodes.filter_map(|(n, depth)| Some((depth * PAGE_TOKENS, Arc::clone(n.state.as_ref()?)))).collect()
    }

    /// Whether the state after `tokens` (whole blocks) is here.
    pub(super) fn has_state(&mut self, tokens: &[u32]) -> bool {
        let path = self.path(tokens);
        path.len() * PAGE_TOKENS == tokens.len()
            && path.last().and_then(|id| self.nodes.get(id)).is_some_and(|n| n.state.is_some())
    }

    /// Keeps the state after `tokens` (whole blocks that were inserted). The least recently used states leave when there are
    /// too many.
    pub(super) fn keep_state(&mut self, tokens: &[u32], state: Arc<StateImage>) {
        let path = self.path(tokens);
        if path.len() * PAGE_TOKENS != tokens.len() || state.len() > self.state_budget {
            return;
        }
        let clock = self.clock;
        let Some(node) = path.last().and_then(|id| self.nodes.get_mut(id)) else { return };
        node.state_used = clock;
        if node.state.is_some() {
            return;
        }
        self.state_bytes += state.len();
        node.state = Some(state);
        while self.state_bytes > self.state_budget {
            let oldest = self.nodes.values_mut().filter(|n| n.state.is_some()).min_by_key(|n| n.state_used);
            let Some(state) = oldest.and_then(|n| n.state.take()) else { return };
            self.state_bytes -= state.len();
        }
    }

    /// Frees the page of the least recently used block that nobody uses and nothing follows. `false` when there is none.
    pub(super) fn evict(&mut self, pages: &mut PagePool) -> bool {
        let unused = self.nodes.iter().filter(|(_, n)| n.children == 0 && pages.users(n.page) == 1);
        let Some(id) = unused.min_by_key(|(_, n)| n.used).map(|(&id, _)| id) else { return false };
        let Some(node) = self.nodes.remove(&id) else { return false };
        self.index.remove(&(node.parent, node.block));
        if let Some(parent) = self.nodes.get_mut(&node.parent) {
            parent.children -= 1;
        }
        self.state_bytes -= node.state.map_or(0, |s| s.len());
        pages.release(node.page);
        true
    }
}

/// The last node of a path that has a state.
trait LastState {
    fn rposition_with_state(self) -> Option<usize>;
}

impl<'a, I: Iterator<Item = &'a Node>> LastState for I {
    fn rposition_with_state(self) -> Option<usize> {
        self.enumerate().filter(|(_, n)| n.state.is_some()).map(|(i, _)| i).last()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn tokens(blocks: &[u32]) -> Vec<u32> {
        blocks.iter().flat_map(|&b| (0..PAGE_TOKENS as u32).map(move |i| 1000 * b + i)).collect()
    }

    fn image(n: u8) -> Arc<StateImage> {
        Arc::new(StateImage::new(vec![n; 10]))
    }

    /// Reads `blocks` as somebody would who found nothing, and leaves.
    fn read(tree: &mut PrefixTree, pages: &mut PagePool, blocks: &[u32]) {
        let mut held: Vec<_> = blocks.iter().map(|_| pages.take().unwrap()).collect();
        tree.insert(&tokens(blocks), &mut held, pages);
        held.into_iter().for_each(|p| pages.release(p));
    }

    #[test]
    fn a_prompt_goes_on_from_the_deepest_state_inside_it() {
        let (mut tree, mut pages) = (PrefixTree::new(100), PagePool::new(10));
        read(&mut tree, &mut pages, &[1, 2, 3]);
        assert!(tree.resume(&tokens(&[1, 2, 3, 4]), &mut pages).is_none());
        tree.keep_state(&tokens(&[1, 2]), image(2));
        let resume = tree.resume(&tokens(&[1, 2, 3, 4]), &mut pages).unwrap();
        assert_eq!((resume.pages.len(), resume.state.bytes().unwrap()[0]), (2, 2));
        assert_eq!(tree.known(&tokens(&[1, 2, 3, 4])), 3 * PAGE_TOKENS);
        assert_eq!(tree.reach(&tokens(&[1, 2, 3, 4])), 2 * PAGE_TOKENS);
        assert_eq!(tree.states(&tokens(&[1, 2, 3])), [(2 * PAGE_TOKENS, image(2))]);
        // One token must be left to compute.
        assert!(tree.resume(&tokens(&[1, 2]), &mut pages).is_none());
        // A single other token in the first block, and nothing is found.
        let mut other = tokens(&[1, 2, 3]);
        other[5] += 1;
        assert!(tree.resume(&other, &mut pages).is_none());
    }

    #[test]
    fn the_same_block_is_stored_once() {
        let (mut tree, mut pages) = (PrefixTree::new(100), PagePool::new(10));
        read(&mut tree, &mut pages, &[1, 2]);
        let mut held = vec![pages.take().unwrap(), pages.take().unwrap(), pages.take().unwrap()];
        tree.insert(&tokens(&[1, 2, 7]), &mut held, &mut pages);
        assert_eq!(pages.free(), 10 - 3);
        assert_eq!(held.iter().map(|&p| pages.users(p)).collect::<Vec<_>>(), [2, 2, 2]);
    }

    #[test]
    fn eviction_takes_leaves_that_nobody_uses_oldest_first_and_all_pages_come_back() {
        let (mut tree, mut pages) = (PrefixTree::new(100), PagePool::new(6));
        read(&mut tree, &mut pages, &[1, 2]);
        read(&mut tree, &mut pages, &[5, 6]);
        tree.keep_state(&tokens(&[1, 2]), image(1));
        let resume = tree.resume(&tokens(&[1, 2, 3]), &mut pages).unwrap();
        assert!(tree.evict(&mut pages) && tree.evict(&mut pages));
        assert!(!tree.evict(&mut pages), "the rest is in use");
        resume.pages.into_iter().for_each(|p| pages.release(p));
        while tree.evict(&mut pages) {}
        assert_eq!((pages.free(), tree.nodes.len(), tree.state_bytes), (6, 0, 0));
    }

    #[test]
    fn states_stay_within_their_budget() {
        let (mut tree, mut pages) = (PrefixTree::new(25), PagePool::new(6));
        read(&mut tree, &mut pages, &[1, 2, 3]);
        for n in 1..=3 {
            tree.keep_state(&tokens(&(1..=n).collect::<Vec<_>>()), image(n as u8));
        }
        assert_eq!(tree.state_bytes, 20);
        assert!(!tree.has_state(&tokens(&[1])) && tree.has_state(&tokens(&[1, 2, 3])));
    }
}
