//! The laws of the store: what must be true of every engine. A law is a sentence; it gets a new and empty world.

// A law that no engine runs is dead code: it must be in the list below.
#![deny(dead_code)]

pub mod accept;
pub mod activate;
pub mod admit;
pub mod alert;
pub mod approval;
pub mod audit;
pub mod budget;
pub mod call;
pub mod claim;
pub mod control;
pub mod drop;
pub mod keep;
pub mod ledger;
pub mod once;
pub mod order;
pub mod pace;
pub mod plot;
pub mod read;
pub mod replay;
pub mod resolve;
pub mod revive;
pub mod schedule;
pub mod seal;
pub mod session;
pub mod settle;
pub mod share;
pub mod token;
pub mod trace;
pub mod user;
mod world;

pub use world::*;

/// Every law, once: makes a test of each, in a world that `$open` makes.
macro_rules! every_law {
    ($open:path) => {
        $crate::laws::every_law! {
            @each $open;
            accept {
                p1_a_success_means_that_event_key_and_job_are_on_disk
                p1_what_was_accepted_is_there_after_a_clean_stop
                p2_a_duplicate_makes_no_second_job_and_gets_the_first_answer
                p2_another_body_under_the_same_key_is_a_conflict_and_leaves_the_first_untouched
                p2_keep_first_answers_another_body_like_a_duplicate
                p2_keys_and_scopes_never_collide
                p2_without_a_key_nothing_is_a_duplicate
                p2_a_thousand_deliveries_at_once_are_one_event
                p2_deliveries_of_many_keys_at_once_are_one_event_each
                p2_a_key_is_known_after_a_kill
                t_058_a_key_outlives_its_ttl_while_its_job_is_unfinished
                t_059_an_expired_key_belongs_to_the_event_that_uses_it_next
                a_duplicate_is_on_record_and_the_record_is_bounded
                t_060_a_duplicate_revives_a_dead_letter_where_the_flow_says_so
                a_duplicate_leaves_a_dead_letter_alone_by_default
                a_duplicate_does_not_rule_on_an_unknown_effect
                an_event_for_several_queues_has_a_job_in_each
                a6_one_event_may_have_jobs_of_several_flows
                ids_grow_even_when_the_clock_goes_back
                ids_are_not_given_twice_when_rows_are_gone
                t_072_no_key_is_readable_on_disk
            }
            admit {
                g1_a_contact_gets_no_more_than_a_cap_allows_and_others_have_their_own
                g1_of_many_at_once_no_more_are_admitted_than_a_cap_allows
                g1_a_step_that_asks_again_counts_once_and_at_its_last_time
                g1_what_may_have_been_sent_stays_admitted
                g1_a_restart_gives_nothing_back
                g1_a_channel_has_a_cap_of_its_own_and_a_day_is_that_of_the_contact
                g1_what_was_surely_not_done_counts_no_more_when_its_job_ends
                g1_what_was_or_may_have_been_done_counts_on
                g1_who_lost_the_lease_is_neither_admitted_nor_gives_back
                g1_counts_that_are_over_are_pruned
            }
            alert {
                h4_an_alert_survives_a_kill_as_it_was
                h4_of_many_who_see_it_one_begins_an_alert
                h4_of_many_who_change_an_alert_one_does
                h4_an_alert_that_ended_lets_the_next_begin
                h4_an_alert_that_is_over_is_kept_for_a_while
            }
            call {
                d3_a_call_is_made_once_and_its_answer_is_given_again
                d3_a_call_that_was_not_done_is_free_at_once
                d3_what_may_have_happened_is_made_again_only_where_that_is_wanted
                d3_p6_who_comes_late_takes_nothing_back
                d3_p6_who_lost_his_job_frees_nothing_that_the_next_one_of_it_has_begun
                d3_c13_what_was_undone_is_free_for_who_had_done_it_alone
                d3_of_many_at_once_one_makes_the_call
                p9_the_answer_of_a_call_cannot_be_read_without_the_key_of_the_store
                d3_a_call_is_forgotten_when_its_time_is_over
            }
            claim {
                p6_two_claimers_never_share_a_job
                a_job_is_not_claimed_before_its_time
                jobs_come_in_order_of_their_time_and_then_of_acceptance
                queues_do_not_see_each_others_jobs
                a_claim_takes_no_more_than_asked
                a_claim_carries_what_was_accepted
                a_claim_carries_its_payload_however_much_waits
                p6_every_claim_has_a_bigger_fence_than_the_one_before
                p6_who_lost_the_lease_changes_nothing
                p6_a_lease_from_before_a_kill_changes_nothing
                p11_a_renewed_lease_is_kept_and_a_lapsed_one_is_lost
                p11_a_lapsed_job_goes_to_the_caller_under_a_new_fence
                a_waiting_worker_is_woken_by_acceptance
                a_waiting_worker_is_woken_by_a_retry_and_told_when_it_is_due
            }
            control {
                e6_a_control_is_set_on_record_and_survives_a_kill
                e6_a_control_is_changed_and_taken_away_once
                e6_who_expects_another_version_changes_nothing
                e6_of_many_who_expect_the_same_one_steers
                e6_a_control_that_ended_is_kept_for_a_while
            }
            session {
                k1_a_password_opens_a_session_on_record
                k1_a_token_that_is_removed_ends_what_was_logged_in_with_it
                k1_a_link_opens_one_session_however_many_use_it
                k1_who_a_provider_vouches_for_is_one_user_however_often_he_comes_at_once
                g3_each_act_of_a_welcome_is_one_line_on_record
                k1_whom_a_provider_gives_nothing_any_more_is_logged_out
                t_101_who_is_removed_or_changed_is_logged_out
                t_101_a_log_in_at_the_moment_of_a_change_does_not_outlive_it
                t_101_sessions_of_one_person_are_bounded_and_old_ones_are_not_kept
            }
            settle {
                p4_a_job_that_is_put_off_waits_and_is_charged_nothing
                e6_who_waits_for_something_that_is_over_is_due_at_once_and_no_other
                c8_what_a_step_came_to_is_on_disk_when_its_job_is_put_off
                p7_a_job_that_is_put_off_keeps_its_place_in_its_lane
                an_attempt_and_what_follows_from_it_are_one_change
                what_was_settled_is_on_disk_when_it_is_answered
                p4_a_retried_job_is_due_later_and_has_failed_once_more
                a_buried_job_says_why_and_how_often_it_was_tried
                p4_a_job_that_was_handed_back_is_charged_nothing
                a_job_that_had_nothing_to_do_is_a_noop
                g1_a_job_that_was_declined_is_a_noop_that_says_why
                a_lease_settles_once
                p5_jobs_of_one_event_end_each_on_their_own
                p12_a_job_keeps_the_version_it_was_accepted_with
            }
            order {
                p7_jobs_of_a_group_run_one_at_a_time_in_order_of_acceptance
                p7_groups_do_not_block_each_other
                p7_a_group_that_was_empty_goes_on_where_it_was
                p7_a_job_that_is_tried_again_keeps_its_group_waiting_and_no_other
                p7_a_dead_letter_lets_the_next_of_its_group_pass
                p7_a_dead_letter_blocks_its_group_and_no_other_where_the_queue_says_so
                p7_a_dead_letter_that_dies_again_blocks_again
                p7_a_dead_letter_that_retention_removed_blocks_nobody
                p7_a_dead_letter_that_lives_again_comes_before_younger_ones_and_never_beside_one
                p7_a_dead_letter_that_lives_again_goes_before_one_that_is_not_due
                p7_the_job_of_a_lost_worker_stays_the_first_of_its_group
                p7_order_survives_a_kill_and_a_stop
                p7_a_job_that_had_begun_something_is_still_the_first_after_a_kill
                p7_a_duplicate_takes_no_place_in_its_group
                p7_two_claimers_never_share_a_group
                p7_a_worker_that_waits_is_woken_when_the_one_before_it_has_ended
                c1_the_highest_priority_goes_first
                c1_of_two_groups_that_keep_their_order_the_higher_goes_first
                f49_a_high_priority_does_not_bring_its_backlog_forward
                c1_a_delayed_job_is_not_claimed_before_its_time
                c1_a_delayed_job_goes_by_its_priority_when_it_is_due
                p7_a_delayed_job_keeps_those_behind_it_waiting
                f49_a_backlog_of_one_lane_does_not_delay_another
                f49_beside_a_lane_that_has_enough_the_others_are_served
                f49_retries_of_one_lane_do_not_delay_another
                f49_groups_that_keep_their_order_take_turns
            }
            ledger {
                p3_an_intent_is_on_disk_before_it_is_answered
                p3_a_kill_after_an_intent_leaves_the_job_to_be_settled_as_lost
                p3_a_kill_after_a_conclusion_leaves_the_receipt_for_the_next_attempt
                p3_a_lapsed_job_shows_what_its_worker_had_begun
                the_last_conclusion_is_on_disk_with_the_attempt
                p3_a_kill_before_any_intent_leaves_the_job_ready
                an_effect_that_is_sent_again_is_one_row_that_counts
                effects_come_in_the_order_of_their_first_intent
                every_state_and_class_of_an_effect_reads_back
            }
            audit {
                g3_every_act_is_on_record_with_who_from_where_before_after_and_why
                g3_the_audit_is_a_chain_that_goes_on_after_a_kill
                g3_many_who_act_at_once_make_one_chain
                g3_a_row_is_neither_changed_nor_removed_in_the_ordinary_way
                g3_whoever_changes_removes_adds_or_swaps_a_row_by_force_is_found_out
                g3_the_audit_is_searched_and_paged
                g3_another_workspace_is_on_record_once
            }
            user {
                g3_a_user_is_known_by_his_token_until_he_is_removed
                g3_a_name_is_given_once
                k1_a_token_is_for_no_more_than_its_user_for_one_source_and_for_a_while
                k1_another_role_takes_away_tokens_that_are_for_more
                k1_a_write_of_somebody_without_the_role_changes_nothing
                k1_what_is_refused_takes_nobody_elses_write_with_it
                t_072_no_token_or_password_of_a_user_is_on_disk
            }
            token {
                a4_a_token_is_listed_until_long_after_its_end
                a4_a_token_is_revoked_once_and_that_survives_a_kill
            }
            trace {
                h2_whatever_tells_of_an_event_tells_its_trace
                h2_a_claim_carries_the_trace_of_its_event_at_every_attempt
                h2_a_delivery_of_a_known_key_is_told_the_trace_of_the_first
                h2_a_trace_leads_to_the_events_that_it_began_with
                h2_an_event_that_was_forgotten_keeps_its_trace
            }
            revive {
                p8_a_replay_keeps_id_key_and_effects
                p8_a_replay_has_its_attempts_before_it_again
                p8_a_replay_is_on_record_with_actor_and_reason
                p8_pressing_twice_is_pressing_once
                p8_a_hundred_presses_at_once_are_one
                p8_an_unknown_effect_asks_first_and_changes_nothing
                p8_resend_opens_the_way_for_an_unknown_effect
                p8_skip_takes_an_unknown_effect_as_done
                p8_an_unknown_effect_that_may_be_sent_again_asks_nobody
                c9_a_replay_takes_up_what_was_given_up_and_knows_no_more_of_it
                p12_a_replay_runs_on_another_version_when_asked_to
                only_a_dead_letter_is_revived
                a_revived_job_survives_a_stop_however_old_it_is
            }
            resolve {
                d2_a_persons_word_settles_an_unknown_effect_on_record
                d2_a_late_answer_without_a_body_becomes_the_result_as_it_came
                d2_what_was_given_up_in_doubt_is_unknown_and_a_person_may_settle_it
                d2_what_a_person_says_was_not_done_is_sent_again_by_a_replay
                d2_saying_it_twice_is_saying_it_once
                d2_many_who_say_it_at_once_are_one
                d2_nobody_rules_on_what_is_known_runs_or_is_not_there
                p6_a_late_answer_is_kept_as_evidence_and_changes_no_state
                p6_every_kind_of_late_answer_reads_back
                p10_late_answers_of_one_effect_are_bounded
                d2_what_a_late_answer_proves_becomes_the_result_of_the_step
                p9_a_late_answer_cannot_be_read_without_the_key_and_is_forgotten_with_its_event
                late_answers_go_with_their_job
                effects_are_listed_by_state_flow_and_job
                what_was_unknown_and_is_known_now_is_not_listed_as_unknown
                pages_show_every_effect_once
            }
            keep {
                retention_removes_a_finished_job_after_its_time
                retention_keeps_a_dead_letter_for_its_own_time
                retention_never_removes_an_unfinished_job
                retention_never_removes_a_job_before_its_key_expires
                an_event_goes_with_the_last_of_its_jobs
                pruning_goes_in_bounded_steps
                p5_what_retention_removed_is_accounted_for
                a_key_is_free_when_its_event_is_gone
                a_workspace_has_one_number
            }
            activate {
                j2_files_that_are_new_become_live_and_the_same_files_change_nothing
                j2_a_choice_of_an_operator_is_not_undone_by_files_that_were_known
                j2_who_expects_another_version_changes_nothing
                j2_of_many_who_choose_at_once_on_the_same_version_one_does
            }
            once {
                b8_a_key_is_set_by_one_job_and_that_job_is_told_the_same_again
                p9_the_result_of_a_key_cannot_be_read_without_the_key_of_the_store
                b8_a_key_may_be_set_again_when_its_time_is_over
                b8_a_kill_leaves_the_key_and_its_line_in_the_ledger_or_neither
                b8_of_many_at_once_one_sets_the_key
                b8_who_lost_the_lease_sets_nothing
                b8_keys_whose_time_is_over_are_pruned
            }
            approval {
                g2_of_approve_reject_expire_and_cancel_at_once_one_wins_and_all_are_on_record
                g2_people_are_asked_once_and_a_kill_forgets_neither_question_nor_votes
                g2_only_who_is_asked_counts_once_and_never_for_an_own_request
                g2_of_many_who_approve_at_once_no_vote_is_lost
                g2_a_verdict_that_comes_before_the_job_begins_to_wait_is_not_slept_through
                g2_a_verdict_wakes_a_job_that_keeps_its_place_in_its_lane
                g2_what_nobody_decides_in_time_expires_and_a_later_vote_is_told_so
                g2_who_lost_the_lease_asks_nobody
                g2_people_are_told_place_by_place_and_reminded_once
                g2_approvals_are_listed_counted_and_go_with_their_job
            }
            budget {
                c5_an_entity_has_so_many_units_in_a_window_and_others_have_their_own
                c5_who_waits_gets_a_unit_of_a_later_window
                c5_p4_a_unit_that_would_come_too_late_is_not_taken
                c5_a_restart_gives_nothing_back
                c5_of_many_at_once_no_more_get_a_unit_than_there_are
                c5_a_person_may_grant_more_on_record
                c5_entities_are_listed_with_what_they_have_left
                p9_no_entity_is_readable_on_disk
                c5_accounts_that_are_over_are_pruned
                p4_a_job_that_failed_and_waits_for_its_budget_has_one_attempt_behind_it
            }
            drop {
                f4_a_dead_letter_is_dropped_by_a_second_person_and_taken_back
                f4_who_is_alone_waits_a_day
                f4_a_request_is_for_the_dead_letter_that_was_seen
                f4_of_many_who_confirm_at_once_one_does
                f4_who_waited_behind_a_dropped_one_goes_on
                f4_a_dropped_one_is_kept_for_thirty_days
            }
            replay {
                p8_a_plan_is_started_once_and_is_on_record
                f3_a_plan_counts_success_noop_and_failure_through_a_kill
                f2_what_changed_since_it_was_counted_is_reported_and_not_run
                p3_a_plan_does_not_rule_on_an_unknown_effect
                f2_what_a_plan_lets_go_stands_behind_what_is_live
                f2_of_many_who_let_go_at_once_one_does
                f2_a_plan_is_paused_resumed_and_stopped
                f2_an_open_plan_is_found_behind_any_number_of_others
                f2_a_plan_that_nobody_started_in_time_is_stale_and_goes
                f2_dead_letters_are_found_by_each_word
            }
            pace {
                e2_moments_follow_each_other_and_each_name_has_its_own
                e2_no_moment_is_given_too_far_ahead
                e2_a_restart_gives_no_moment_twice
                c4_moments_are_as_far_apart_as_who_asks_now_wants_them
                e2_many_at_once_never_get_the_same_moment
            }
            schedule {
                c10_a_slot_is_used_up_together_with_its_event
                c10_of_many_at_once_one_fires
                c10_no_run_begins_while_another_is_not_finished
                c10_runs_overlap_where_that_is_wanted
                c10_a_slot_may_be_let_pass
                c10_a_run_that_somebody_asks_for_uses_up_no_slot_and_is_on_record
                f2_dead_letters_are_pulled_in_the_order_in_which_they_died
            }
            share {
                e1_who_is_alone_has_all_places
            }
            seal {
                p9_what_is_stored_cannot_be_read_without_the_key
                k2_of_an_empty_answer_nothing_is_stored_and_it_is_told_as_it_was
                k2_without_encryption_it_is_stored_as_it_came
                t103_what_is_copied_to_another_event_does_not_open
                t104_what_was_changed_does_not_open_and_says_so
                t104_what_was_put_there_unsealed_does_not_open
                t106_a_wrong_key_is_refused
                t106_an_older_key_still_reads
                t106_a_key_is_changed_under_load_and_all_is_sealed_again
                k2_what_was_written_before_encryption_is_read_and_sealed_by_a_rotation
                t108_what_is_forgotten_is_gone_and_the_books_stay
                t108_a_job_whose_data_is_forgotten_is_claimed_without_it
                t108_what_is_forgotten_is_not_sealed_again
                t106_answers_of_calls_are_under_a_key_and_sealed_again
                k2_answers_from_before_encryption_are_read_and_sealed_by_a_rotation
                t108_an_answer_is_forgotten_and_its_call_stays_made
            }
            read {
                a_list_shows_the_newest_first
                a_list_is_filtered_by_state
                a_list_is_filtered_by_flow_queue_and_reason
                i1_a_list_is_filtered_by_source_step_attempts_and_time
                i1_a_list_counts_what_fits_and_tells_how_far_it_looked
                i1_events_are_listed_with_how_often_they_came_again
                i1_an_event_is_found_by_what_was_said_of_it_until_it_is_gone
                pages_show_every_job_once
                pages_of_dead_letters_show_every_one_once_in_whatever_order_they_died
                a_page_is_not_cut_short_by_jobs_that_run
                dead_letters_are_grouped_by_flow_and_reason
                latencies_are_those_of_the_window
                a_key_leads_to_its_event
                the_story_of_a_job_tells_everything
                jobs_are_counted_by_flow_and_state
                counts_are_the_same_after_a_stop
                versions_of_unfinished_jobs_are_known
                what_is_not_there_is_not_found
            }
        }
    };
    (@each $open:path; $($family:ident { $($law:ident)* })*) => {
        $(mod $family {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $law() {
                $crate::laws::$family::$law($open().await).await;
            })*
        })*
    };
}
pub(crate) use every_law;
